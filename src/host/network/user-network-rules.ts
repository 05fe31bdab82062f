/**
 * Applies and removes the guests' egress rules.
 * Invariant: when the rules cannot be applied, the reason is returned. The caller must then not start guests, or must report
 * that guests can reach this host's loopback.
 */
import { spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { isIP } from 'node:net';
import { networkInterfaces } from 'node:os';
import { assert } from '../../shared/assert.ts';
import { CLOSED_IPV4, CLOSED_IPV6 } from '../../shared/networks.ts';
import { VM_UID_BASE, VM_UID_COUNT } from '../qemu/uid.ts';

/**
 * What a guest may reach, as nftables rules (nft(8)): a pure function that returns the input of `nft -f -`. For guests with TAP
 * devices see host/network; these are for QEMU's user network.
 *
 * A guest's traffic leaves through QEMU's user-mode network, so on the host it is traffic of the VM's user. slirp maps
 * 10.0.2.2 and 10.0.2.3 to the host's loopback and resolver, so traffic to these appears as traffic to 127.0.0.1 and to the
 * resolver.
 *
 * Invariants:
 * - order of the rules: replies of forwarded SSH connections, DNS to the host's resolvers, closed networks, the rest (open);
 * - traffic to this host itself (by `lo`) is closed, which includes its public addresses and other guests' ports;
 * - applying the text replaces the table in one transaction, so the rules are never absent.
 */

/** The part of the loopback where the ports of guests are open. */
export const GUEST_PORTS = '127.64.0.0/10';

export interface EgressOptions {
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

/** The id of a data folder for {@link EgressOptions}. */
export function dataFolderId(data_dir: string): string {
  return createHash('sha256').update(data_dir).digest('hex').slice(0, 12);
}

/** The table's name: `berth_<data folder id>`, in family inet. */
export function egressTable(data_folder_id: string): string {
  assert(/^[a-zA-Z0-9_]{1,64}$/.test(data_folder_id), 'data_folder_id must be letters, digits and _');
  return `berth_${data_folder_id}`;
}

/** The input of `nft -f -`, which creates or replaces the table in one transaction. */
export function egressRules(options: EgressOptions): string {
  const table = egressTable(options.data_folder_id);
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
    // The ways into guests (machine/guest-ports.ts) are for Berth, which checks who may use them.
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

export function networkRule(network: string): string[] {
  const [address = '', prefix = ''] = network.split('/');
  const family = isIP(address);
  const usable = family !== 0 && /^[0-9]{1,3}$/.test(prefix) && !address.includes('%');
  return usable ? [`    ${family === 4 ? 'ip' : 'ip6'} daddr ${address}/${prefix} goto refuse`] : [];
}

export function resolverRules(family: 'ip' | 'ip6', resolvers: readonly string[]): string[] {
  if (resolvers.length === 0) return [];
  const to = `${family} daddr { ${[...new Set(resolvers)].join(', ')} }`;
  return [`    ${to} udp dport 53 accept`, `    ${to} tcp dport 53 accept`];
}

const NFT_TIMEOUT_MS = 10_000;

export type EgressResult =
  | { readonly closed: true }
  | {
      readonly closed: false;
      /** For people. */
      readonly reason: string;
    };

/**
 * Applies the rules, replacing the table. Never throws. It reads the host's present resolvers and networks; call it again
 * when they change.
 */
export async function applyEgressRules(options: {
  readonly data_folder_id: string;
  readonly nft_binary?: string;
  /** First and last user of the VMs; by default the range of uid.ts. */
  readonly first_uid?: number;
  readonly last_uid?: number;
  readonly egress_proxy_uid?: number;
  /** More chains of the table. */
  readonly chains?: readonly string[];
}): Promise<EgressResult> {
  let resolvers: string[] = [];
  try {
    resolvers = parseResolvers(readFileSync('/etc/resolv.conf', 'utf8'));
  } catch {
    // Without it no resolver is opened, so guests have no DNS.
  }
  const text = egressRules({ ...options, resolvers, host_networks: hostNetworks() });
  const trouble = await nft(options.nft_binary ?? 'nft', text);
  return trouble === null
    ? { closed: true }
    : { closed: false, reason: `the guests' network cannot be closed off: ${trouble}` };
}

/** Removes the table. Returns the reason when it fails. Call it only while none of this installation's guests run. */
export async function removeEgressRules(data_folder_id: string): Promise<string | null> {
  const table = egressTable(data_folder_id);
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
