/**
 * Makes the nftables rules that hold for all guests, as input of `nft -f -`, and applies those of the host. The rules
 * of egress policies stand beside them, in a table of their own (host/egress/policy-rules.ts).
 *
 * - {@link namespaceRules}: in the guests' network namespace. They name no VM: every TAP device is `vm…`.
 * - {@link tapRules}: a table for each TAP device, which gives its guest one address that cannot be forged.
 * - {@link hostRules}: in the host's namespace, for QEMU's user network, and for the link to guests with TAP devices.
 *
 * Applying a text replaces its table in one transaction, so the rules are never absent.
 */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { isIP } from 'node:net';
import { networkInterfaces } from 'node:os';
import { assert } from '../../shared/assert.ts';
import { CLOSED_IPV4, CLOSED_IPV6 } from '../../shared/networks.ts';
import { VM_UID_BASE, VM_UID_COUNT } from '../qemu/confinement.ts';
import {
  DENIED_SET,
  GATEWAY,
  GATEWAY_MAC,
  GUEST,
  GUEST_RESOLVER,
  GUESTS,
  guestAddress,
  HOST_END,
  LOG_DENIED,
  PROXY_MARK,
  tapName,
} from './addresses.ts';

/** Open connections of one guest to the outside and to the egress proxy: tracking them takes memory of the host. */
export const CONNECTIONS_MAX = 8_192;
export const LINK = 'host';
const COUNT_CONNECTIONS = `ct state new add @connections { ip saddr ct count over ${CONNECTIONS_MAX} } goto refuse`;

export interface NamespaceRules {
  /** IPv4 addresses of the host's resolvers. The first answers the guests. */
  readonly resolvers: readonly string[];
  /** The host's networks and its own addresses (`address/prefix`). */
  readonly host_networks: readonly string[];
}

/** The input of `nft -f -`, which creates or replaces the table `inet guests` in one transaction. */
export function namespaceRules({ resolvers, host_networks }: NamespaceRules): string {
  const [resolver] = resolvers;
  const ipv4_networks = host_networks.filter((each) => isIP(each.split('/')[0] ?? '') === 4);
  return [
    // Declare the table first, so that deleting it cannot fail.
    'table inet guests {}',
    'delete table inet guests',
    'table inet guests {',
    '  set connections { type ipv4_addr; size 65535; flags dynamic; }',
    DENIED_SET,
    '  chain prerouting {',
    '    type nat hook prerouting priority dstnat; policy accept;',
    '    iifname "vm*" jump guest_dstnat',
    '  }',
    '  chain guest_dstnat {',
    ...(resolver === undefined
      ? []
      : ['udp', 'tcp'].map(
          (protocol) => `    ip daddr ${GUEST_RESOLVER} ${protocol} dport 53 dnat ip to ${resolver}`,
        )),
    '  }',
    '  chain postrouting {',
    '    type nat hook postrouting priority srcnat; policy accept;',
    // A guest sees connections from this host as those of its gateway.
    `    oifname "vm*" ip saddr ${HOST_END} snat ip to ${GATEWAY}`,
    '  }',
    '  chain input {',
    '    type filter hook input priority filter; policy drop;',
    '    ct state established,related accept',
    `    iifname "vm*" ip saddr ${GUESTS} jump guest_input`,
    '  }',
    '  chain guest_input {',
    '    icmp type echo-request accept',
    // Only the rules of restricted guests set it.
    `    meta mark != ${PROXY_MARK} goto refuse`,
    `    ${COUNT_CONNECTIONS}`,
    '    accept',
    '  }',
    '  chain forward {',
    '    type filter hook forward priority filter; policy drop;',
    `    iifname "vm*" ip saddr ${GUESTS} jump guest`,
    '    oifname "vm*" jump to_guest',
    '  }',
    '  chain guest {',
    '    ct state established,related accept',
    '    ct state invalid drop',
    ...resolverRules('ip', resolvers),
    ...ipv4_networks.flatMap(networkRule),
    `    ip daddr { ${CLOSED_IPV4.join(', ')} } goto refuse`,
    `    ${COUNT_CONNECTIONS}`,
    `    oifname "${LINK}" accept`,
    '  }',
    '  chain to_guest {',
    '    ct state established,related accept',
    `    iifname "${LINK}" ip saddr ${HOST_END} accept`,
    '  }',
    '  chain refuse {',
    `    ${LOG_DENIED}`,
    '    meta l4proto tcp counter reject with tcp reset',
    '    counter reject with icmpx admin-prohibited',
    '  }',
    '}',
    '',
  ].join('\n');
}

export interface Tap {
  readonly slot: number;
  /** Of the guest's network card. */
  readonly mac: string;
}

/** The addresses of one TAP device, as input of `ip -batch -`. The kernel removes all of them with the device. */
export function tapAddresses({ slot, mac }: Tap): string {
  const [name, address] = [tapName(slot), guestAddress(slot)];
  return [
    `link set dev ${name} address ${GATEWAY_MAC}`,
    `address replace ${GATEWAY}/32 dev ${name}`,
    `address replace ${GUEST_RESOLVER}/32 dev ${name}`,
    `link set dev ${name} up`,
    // The guest does not know its own address, so it cannot answer for it.
    `neighbour replace ${address} lladdr ${mac} dev ${name} nud permanent`,
    `route replace ${address}/32 dev ${name}`,
    '',
  ].join('\n');
}

/**
 * The rules of one TAP device, as input of `nft -f -`, for the table named like the device. Frames from the guest are dropped unless they are IPv4 or ARP with
 * its own MAC and IP address: no IPv6, no VLAN, no other protocol, no other sender.
 *
 * The translation knows no connections, so that everything behind it sees one address for each guest. An ICMP error also holds
 * the start of the packet that it is about, with the guest's address in it. nft would leave its checksum wrong there: a word of
 * the error that is unused (RFC 792) evens it out.
 */
export function tapRules({ slot, mac }: Tap): string {
  assert(/^([0-9a-f]{2}:){5}[0-9a-f]{2}$/.test(mac), 'mac is no MAC address');
  const [name, address] = [tapName(slot), guestAddress(slot)];
  return [
    // Declare the table first, so that deleting it cannot fail: an earlier device of that name may have left it.
    `table netdev ${name} {}`,
    `delete table netdev ${name}`,
    `table netdev ${name} {`,
    '  chain from_guest {',
    `    type filter hook ingress device ${name} priority filter; policy drop;`,
    `    ether saddr ${mac} ip saddr ${GUEST} ip saddr set ${address} accept`,
    `    arp saddr ether ${mac} arp saddr ip ${GUEST} accept`,
    '  }',
    '  chain to_guest {',
    `    type filter hook egress device ${name} priority filter; policy drop;`,
    `    ip daddr ${address} icmp type { destination-unreachable, time-exceeded } @th,32,16 0 @th,160,32 set ${word(GUEST)} @th,32,16 set ${sumWord(address, GUEST)}`,
    `    ip daddr ${address} ip daddr set ${GUEST} accept`,
    '    ether type arp accept',
    '  }',
    '}',
    '',
  ].join('\n');
}

/** An address as a number in hexadecimal. */
function word(address: string): string {
  return `0x${address
    .split('.')
    .map((byte) => Number(byte).toString(16).padStart(2, '0'))
    .join('')}`;
}

/** The 16-bit word that keeps an Internet checksum (RFC 1071) when `from` becomes `to` and a word of 0 becomes it. */
export function sumWord(from: string, to: string): number {
  const sum = (address: string) => {
    const [a = 0, b = 0, c = 0, d = 0] = address.split('.').map(Number);
    return (a << 8) + b + (c << 8) + d;
  };
  return (((sum(from) - sum(to)) % 0xffff) + 0xffff) % 0xffff;
}

/** Every installation's end of its link has this prefix. */
export const LINK_PREFIX = 'berth-';

export interface HostChains {
  /** The host's end of the link to the guests. */
  readonly link: string;
  readonly resolvers: readonly string[];
  /** Interfaces that forward only since we need it; see below. */
  readonly uplinks: readonly string[];
}

/**
 * The chains in the host's own network namespace for guests with TAP devices: part of the table of {@link hostRules}.
 *
 * Guests reach nothing on the host but its resolvers; nothing but the host itself connects to a guest; what leaves the host has
 * the host's address.
 *
 * Where the host did not forward packets before, its uplinks do now, but for guests only: a neighbour of the host must not use it
 * as a router.
 */
export function hostChains({ link, resolvers, uplinks }: HostChains): string[] {
  const names = uplinks.map((each) => `"${each}"`).join(', ');
  return [
    '  chain output_to_guests {',
    '    type filter hook output priority filter; policy accept;',
    `    oifname "${link}" ct state new jump to_guests`,
    '  }',
    '  chain to_guests {',
    // Other users of this machine connect through the ingress, which checks who may use a port.
    '    meta skuid != 0 goto refuse',
    '  }',
    '  chain input {',
    '    type filter hook input priority filter; policy accept;',
    `    iifname "${link}" jump from_guests`,
    '  }',
    '  chain from_guests {',
    '    ct state established,related accept',
    ...resolverRules('ip', resolvers),
    '    goto refuse',
    '  }',
    '  chain forward {',
    '    type filter hook forward priority filter; policy accept;',
    // Where the way out takes smaller packets than ours.
    `    iifname "${link}" tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu`,
    `    oifname "${link}" tcp flags & (syn | rst) == syn tcp option maxseg size set rt mtu`,
    `    oifname "${link}" ct state != { established, related } drop`,
    ...(uplinks.length === 0 ? [] : [`    iifname { ${names} } oifname != "${LINK_PREFIX}*" drop`]),
    '  }',
    '  chain postrouting {',
    '    type nat hook postrouting priority srcnat; policy accept;',
    `    ip saddr ${GUESTS} oifname != "${LINK_PREFIX}*" masquerade`,
    '  }',
  ];
}

/** The part of the loopback where the ports of guests are open. */
export const GUEST_PORTS = '127.64.0.0/10';

export interface HostRulesOptions {
  /** Identifies this installation's table: letters, digits and `_`. */
  readonly data_folder_id: string;
  /** Addresses of the host's resolvers. */
  readonly resolvers: readonly string[];
  /** The host's networks (`address/prefix`), which are as private as 10.0.0.0/8. */
  readonly host_networks?: readonly string[];
  /** First and last user of the VMs. */
  readonly first_uid?: number;
  readonly last_uid?: number;
  /** The egress proxy's user, to which the same is closed. */
  readonly egress_proxy_uid?: number;
  /** For guests with TAP devices. */
  readonly chains?: readonly string[];
}

/** The id of a data folder for {@link HostRulesOptions}. */
export function dataFolderId(data_dir: string): string {
  return createHash('sha256').update(data_dir).digest('hex').slice(0, 12);
}

/** The table's name: `berth_<data folder id>`, in family inet. */
export function hostTable(data_folder_id: string): string {
  assert(/^[a-zA-Z0-9_]{1,64}$/.test(data_folder_id), 'data_folder_id must be letters, digits and _');
  return `berth_${data_folder_id}`;
}

/**
 * The rules in the host's own namespace. With QEMU's user network a guest's traffic is traffic of the VM's user. slirp maps 10.0.2.2
 * and 10.0.2.3 to the host's loopback and resolver, so traffic to these appears as traffic to 127.0.0.1 and to the resolver.
 *
 * Invariants:
 * - order of the rules: replies of forwarded SSH connections, DNS to the host's resolvers, closed networks, the rest (open);
 * - traffic to this host itself (by `lo`) is closed, which includes its public addresses and other guests' ports.
 */
export function hostRules(options: HostRulesOptions): string {
  const table = hostTable(options.data_folder_id);
  const first_uid = options.first_uid ?? VM_UID_BASE;
  const last_uid = options.last_uid ?? VM_UID_BASE + VM_UID_COUNT - 1;
  assert(Number.isInteger(first_uid) && first_uid > 0, 'first_uid must be a user other than root');
  assert(Number.isInteger(last_uid) && last_uid >= first_uid, 'last_uid must not be below first_uid');
  const resolvers_v4 = options.resolvers.filter((address) => isIP(address) === 4);
  const resolvers_v6 = options.resolvers.filter((address) => isIP(address) === 6 && !address.includes('%'));
  return [
    // Declare the table first, so that deleting it cannot fail.
    `table inet ${table} {}`,
    `delete table inet ${table}`,
    `table inet ${table} {`,
    '  chain output {',
    '    type filter hook output priority filter; policy accept;',
    `    meta skuid ${first_uid}-${last_uid} jump guest`,
    ...(options.egress_proxy_uid === undefined
      ? []
      : [`    meta skuid ${options.egress_proxy_uid} jump guest`]),
    // The ways into guests (vm/guest-ports.ts) are for Berth, which checks who may use them.
    `    ip daddr ${GUEST_PORTS} meta skuid != 0 ct state new goto refuse`,
    '  }',
    '  chain guest {',
    '    ct state established,related accept',
    ...resolverRules('ip', resolvers_v4),
    ...resolverRules('ip6', resolvers_v6),
    '    oifname "lo" goto refuse',
    ...(options.host_networks ?? []).flatMap(networkRule),
    `    ip daddr { ${CLOSED_IPV4.join(', ')} } goto refuse`,
    `    ip6 daddr { ${CLOSED_IPV6.join(', ')} } goto refuse`,
    '  }',
    ...(options.chains ?? []),
    // A reset becomes "connection refused" in the guest at once. slirp does not forward every ICMP error.
    '  chain refuse {',
    '    meta l4proto tcp counter reject with tcp reset',
    '    counter reject with icmpx admin-prohibited',
    '  }',
    '}',
    '',
  ].join('\n');
}

/** The first three resolvers of a resolv.conf (resolv.conf(5)), as the C library uses. */
export function parseResolvers(resolv_conf: string): string[] {
  return resolv_conf
    .split('\n')
    .map((line) => /^nameserver\s+(\S+)/.exec(line)?.[1])
    .filter((address) => address !== undefined && isIP(address) !== 0)
    .slice(0, 3) as string[];
}

function networkRule(network: string): string[] {
  const [address = '', prefix = ''] = network.split('/');
  const family = isIP(address);
  const usable = family !== 0 && /^[0-9]{1,3}$/.test(prefix) && !address.includes('%');
  return usable ? [`    ${family === 4 ? 'ip' : 'ip6'} daddr ${address}/${prefix} goto refuse`] : [];
}

function resolverRules(family: 'ip' | 'ip6', resolvers: readonly string[]): string[] {
  if (resolvers.length === 0) return [];
  const to = `${family} daddr { ${[...new Set(resolvers)].join(', ')} }`;
  return [`    ${to} udp dport 53 accept`, `    ${to} tcp dport 53 accept`];
}

const NFT_TIMEOUT_MS = 10_000;

export type HostRulesResult =
  | { readonly closed: true }
  | {
      readonly closed: false;
      /** For people. */
      readonly reason: string;
    };

/**
 * Applies the rules of the host, replacing the table. Never throws: the caller must not start guests where the reason is returned, or
 * must report that guests can reach this host's loopback. It reads the host's present resolvers and networks; call it again
 * when they change.
 */
export async function applyHostRules(options: {
  readonly data_folder_id: string;
  readonly nft_binary?: string;
  /** First and last user of the VMs; by default the range of qemu/confinement.ts. */
  readonly first_uid?: number;
  readonly last_uid?: number;
  readonly egress_proxy_uid?: number;
  /** More chains of the table. */
  readonly chains?: readonly string[];
}): Promise<HostRulesResult> {
  let resolvers: string[] = [];
  try {
    resolvers = parseResolvers(readFileSync('/etc/resolv.conf', 'utf8'));
  } catch {
    // Without it no resolver is opened, so guests have no DNS.
  }
  const text = hostRules({ ...options, resolvers, host_networks: hostNetworks() });
  const problem = await nft(options.nft_binary ?? 'nft', text);
  return problem === null
    ? { closed: true }
    : { closed: false, reason: `the guests' network cannot be closed off: ${problem}` };
}

/** Removes the table. Returns the reason when it fails. Call it only while none of this installation's guests run. */
export async function removeHostRules(data_folder_id: string): Promise<string | null> {
  const table = hostTable(data_folder_id);
  return nft('nft', `table inet ${table} {}\ndelete table inet ${table}\n`);
}

/** The networks of the host's interfaces, except single addresses (/32, /128). */
function hostNetworks(): string[] {
  return Object.values(networkInterfaces())
    .flatMap((addresses) => addresses ?? [])
    .map((address) => address.cidr)
    .filter((cidr) => cidr !== null && !/\/(32|128)$/.test(cidr)) as string[];
}

/** Applies `rules`. Null on success, else the error. */
function nft(binary: string, rules: string): Promise<string | null> {
  const { promise, resolve } = Promise.withResolvers<string | null>();
  const child = spawn(binary, ['-f', '-'], {
    stdio: ['pipe', 'ignore', 'pipe'],
    env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C.UTF-8' },
    timeout: NFT_TIMEOUT_MS,
    killSignal: 'SIGKILL',
  });
  let errors = '';
  child.stderr.on('data', (chunk: Buffer) => {
    errors = (errors + chunk.toString('utf8')).slice(0, 2_000);
  });
  child.once('error', (error: NodeJS.ErrnoException) => {
    resolve(error.code === 'ENOENT' ? `${binary} is not installed (Debian: nftables)` : error.message);
  });
  child.once('close', (status, signal) => {
    const said = errors.trim().split('\n')[0];
    resolve(
      status === 0 ? null : `${binary} ended with ${signal ?? `status ${status}`}${said ? `: ${said}` : ''}`,
    );
  });
  child.stdin.on('error', () => {});
  child.stdin.end(rules);
  return promise;
}
