/**
 * Makes and mends the network of the guests: a network namespace of this installation, with a TAP device for each VM
 * and a link to the host's namespace. Also lets the host forward the guests' packets, and finds the resolvers for
 * guests.
 *
 *   guest ── TAP ─┐                                   ┌─ uplink
 *   guest ── TAP ─┴─ berth-<id>: policy ── link ── host: masquerade
 *
 * Invariants:
 * - The namespace outlives the agent. No other program's `nft flush ruleset` reaches the rules in it.
 * - A TAP device exists for as long as its QEMU. QEMU itself has an empty network namespace.
 * - Every function here may be repeated: it mends what is missing.
 */
import { existsSync, readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { isIP } from 'node:net';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { messageOf } from '../../shared/errors.ts';
import { egressProxyUid } from '../qemu/confinement.ts';
import { GUESTS_END, guestAddress, HOST_END, slotOf, tapName } from './addresses.ts';
import { forgetConnections, removeHeld } from './hold-connections.ts';
import {
  dataFolderId,
  hostChains,
  hostTable,
  LINK,
  LINK_PREFIX,
  namespaceRules,
  parseResolvers,
  type Tap,
  tapAddresses,
  tapRules,
} from './packet-rules.ts';
import { runTool } from './run-tool.ts';

const TUN = '/dev/net/tun';
const OPEN_TAP = join(import.meta.dirname, 'open-tap.pl');
/** QEMU's file descriptor of its TAP device. */
export const TAP_FD = 5;
/** Where a service has a mount namespace of its own, a mount in the system's is one that the next agent sees too. */
const SYSTEM_MOUNTS = ['--mount=/proc/1/ns/mnt', '--'] as const;
/** A slot that no VM has: for the trial. */
const TRIAL: Tap = { slot: 1, mac: '52:54:00:00:00:00' };

/** The rules that this process has applied. */
const applied = new WeakMap<GuestNetwork, string>();

export interface GuestNetwork {
  /** The namespace's name (`ip netns`). */
  readonly name: string;
  /** The namespace's file. */
  readonly path: string;
  /** The host's end of the link. */
  readonly link: string;
  /** The table of rules in the host's own namespace. */
  readonly table: string;
  /** The egress proxy's user. */
  readonly egress_proxy_uid: number;
}

export function guestNetworkOf(data_dir: string): GuestNetwork {
  const id = dataFolderId(data_dir);
  // An interface's name has at most 15 bytes.
  return {
    name: `berth-${id}`,
    path: `/run/netns/berth-${id}`,
    link: `${LINK_PREFIX}${id.slice(0, 8)}`,
    table: hostTable(id),
    egress_proxy_uid: egressProxyUid(id),
  };
}

/**
 * Makes the network, and a TAP device on trial. Needs root. Returns the problem where it cannot be: see QEMU's user network. VMs that
 * run with TAP devices keep their network: its rules must be mended, and it is returned beside the problem.
 */
export async function openGuestNetwork(
  data_dir: string,
  setting: 'auto' | 'user',
): Promise<
  { readonly network: GuestNetwork; readonly problem: string | null } | { network: null; problem: string }
> {
  const network = guestNetworkOf(data_dir);
  try {
    if (setting === 'user') throw new Error('BERTH_GUEST_NETWORK is user');
    if (!existsSync(TUN)) throw new Error(`${TUN} is missing`);
    await mendGuestNetwork(network);
    const [file = '', ...args] = onTap(network, TRIAL, ['true']);
    await runTool(file, args);
    return { network, problem: null };
  } catch (error) {
    if (await hasDevices(network))
      return {
        network,
        problem: `VMs keep their TAP devices while one of them runs: ${messageOf(error)}`,
      };
    return {
      network: null,
      problem: `VMs have QEMU's user network, which is slower and less isolated: ${messageOf(error)}`,
    };
  }
}

/** Makes what is missing of it, and renews its rules. @throws why it cannot be */
export async function mendGuestNetwork(network: GuestNetwork): Promise<void> {
  const { name, path, link } = network;
  if (!(await works('nsenter', [`--net=${path}`, 'true']))) {
    await removeNamespace(name);
    // Its other end is in a namespace that nobody can enter any more.
    await works('ip', ['link', 'delete', link]);
    // A container may not enter the system's mount namespace, and needs not.
    if (!(await works('nsenter', [...SYSTEM_MOUNTS, 'ip', 'netns', 'add', name])))
      await runTool('ip', ['netns', 'add', name]);
  }
  if (!(await works('ip', ['link', 'show', 'dev', link])))
    await runTool('ip', ['link', 'add', link, 'type', 'veth', 'peer', 'name', LINK, 'netns', name]);
  await inNetwork(network, ['sh', '-c', settingsScript()]);
  await writeFile(`/proc/sys/net/ipv6/conf/${link}/disable_ipv6`, '1').catch(() => undefined);
  await runTool(
    'ip',
    ['-batch', '-'],
    `address replace ${HOST_END}/32 dev ${link}\nlink set dev ${link} up\n`,
  );
  const routes = [
    'link set dev lo up',
    `address replace ${GUESTS_END}/32 dev ${LINK}`,
    `link set dev ${LINK} up`,
    `route replace ${HOST_END}/32 dev ${LINK}`,
    `route replace default via ${HOST_END} dev ${LINK}`,
  ];
  await inNetwork(network, ['ip', '-batch', '-'], `${routes.join('\n')}\n`);
  await removeOldTables(network);
  const rules = namespaceRules({ resolvers: guestResolvers(), host_networks: hostAddresses() });
  // Its set of connections would begin anew with the table.
  const present = applied.get(network) === rules && (await hasRules(network));
  if (!present) await inNetwork(network, ['nft', '-f', '-'], rules);
  applied.set(network, rules);
}

/** Removes it. Call it only while none of this installation's guests run. */
export async function removeGuestNetwork(data_dir: string): Promise<void> {
  const network = guestNetworkOf(data_dir);
  const { name, link } = network;
  await works('ip', ['link', 'delete', link]);
  await removeNamespace(name);
  await removeHeld(network);
}

/**
 * A TAP device leaves its table behind, and the kernel its guest's connections. Tables by their handles: a new device of the same name
 * has a new table.
 */
async function removeOldTables(network: GuestNetwork): Promise<void> {
  const listed = JSON.parse(await inNetwork(network, ['nft', '-j', 'list', 'tables', 'netdev'])) as {
    readonly nftables: readonly { readonly table?: { readonly name: string; readonly handle: number } }[];
  };
  const links = JSON.parse(await inNetwork(network, ['ip', '-json', 'link'])) as {
    readonly ifname: string;
  }[];
  const there = new Set(links.map(({ ifname }) => ifname));
  for (const { table } of listed.nftables) {
    if (!table || there.has(table.name)) continue;
    await forgetConnections(network, slotOf(table.name));
    await inNetwork(network, ['nft', 'delete', 'table', 'netdev', 'handle', String(table.handle)]);
  }
}

async function removeNamespace(name: string): Promise<void> {
  const remove = ['ip', 'netns', 'delete', name] as const;
  if (!(await works('nsenter', [...SYSTEM_MOUNTS, ...remove]))) await works(remove[0], remove.slice(1));
}

/** The route from the host to a guest's own address. */
export async function routeToGuest({ link }: GuestNetwork, slot: number): Promise<void> {
  const way = ['via', GUESTS_END, 'dev', link, 'onlink', 'src', HOST_END];
  await runTool('ip', ['route', 'replace', `${guestAddress(slot)}/32`, ...way]);
}

/** The command line that opens the VM's TAP device and runs `command` with it, as {@link TAP_FD}, in an empty network namespace. */
export function onTap({ path }: GuestNetwork, tap: Tap, command: readonly string[]): string[] {
  return [
    ...['nsenter', `--net=${path}`, '--', 'perl', OPEN_TAP, tapName(tap.slot), String(TAP_FD)],
    ...[tapAddresses(tap), tapRules(tap), 'unshare', '--net', '--', ...command],
  ];
}

/** Runs a program in the guests' network namespace. */
export function inNetwork(
  { path }: Pick<GuestNetwork, 'path'>,
  command: readonly string[],
  input = '',
): Promise<string> {
  return runTool('nsenter', [`--net=${path}`, '--', ...command], input);
}

/**
 * Its kernel settings. The host may have others, which a new namespace inherits. A guest's own address is not the one in its ARP
 * requests, so the check of reverse paths is off; what a guest sends is checked at its TAP device.
 */
function settingsScript(): string {
  const all = (name: string, value: number) =>
    ['all', 'default'].map((each) => [`ipv4/conf/${each}/${name}`, value]);
  const settings = [
    ['ipv4/ip_forward', 1],
    ...all('rp_filter', 0),
    ...all('arp_ignore', 1),
    ...all('send_redirects', 0),
    ...all('accept_redirects', 0),
    ...all('accept_source_route', 0),
  ];
  const ipv6 = ['all', 'default'].map(
    (each) => `[ ! -e /proc/sys/net/ipv6 ] || echo 1 > /proc/sys/net/ipv6/conf/${each}/disable_ipv6`,
  );
  return [
    'set -e',
    ...ipv6,
    ...settings.map(([path, value]) => `echo ${value} > /proc/sys/net/${path}`),
  ].join('\n');
}

/** The networks and addresses of the host's interfaces. */
export function hostAddresses(): string[] {
  const all = Object.values(networkInterfaces()).flatMap((addresses) => addresses ?? []);
  return [
    ...new Set(
      all.flatMap(({ cidr, address, family }) =>
        family === 'IPv4' ? [cidr ?? address, `${address}/32`] : [],
      ),
    ),
  ];
}

async function hasDevices(network: GuestNetwork): Promise<boolean> {
  const links = await inNetwork(network, ['ip', '-br', 'link', 'show', 'type', 'tun']).catch(() => '');
  return /^vm[0-9]/m.test(links);
}

function hasRules({ path }: GuestNetwork): Promise<boolean> {
  return works('nsenter', [`--net=${path}`, '--', 'nft', 'list', 'chain', 'inet', 'guests', 'guest']);
}

async function works(file: string, args: readonly string[]): Promise<boolean> {
  return runTool(file, args).then(
    () => true,
    () => false,
  );
}

const IP_FORWARD = '/proc/sys/net/ipv4/ip_forward';

export interface Mended {
  /** For the table of the host (packet-rules.ts). */
  readonly chains: readonly string[];
  /** What guests lack; for people. */
  readonly problem: string | null;
}

/**
 * Lets the host forward its guests' packets, and nothing else that it did not forward before. Never throws; repeat it.
 *
 * A packet is forwarded only if every firewall's forward chain accepts it. Docker and ufw drop what they do not know, so such a
 * chain gets one more rule at its end: what its owner refuses by a rule stays refused.
 */
export async function mendForwarding(network: GuestNetwork): Promise<Mended> {
  const resolvers = guestResolvers();
  let uplinks: string[] = [];
  const problems = resolvers.length > 0 ? [] : ['no IPv4 resolver of this host can be reached by guests'];
  try {
    await mendGuestNetwork(network);
    uplinks = await forwardUplinks(network);
    await passOtherFirewalls(network);
  } catch (error) {
    problems.push(`the guests' network is incomplete: ${messageOf(error)}`);
  }
  const chains = hostChains({ link: network.link, resolvers, uplinks });
  return { chains, problem: problems.length > 0 ? problems.join('; ') : null };
}

/** Returns the interfaces that forward only for guests: none where the host forwards anyway. */
async function forwardUplinks({ link }: GuestNetwork): Promise<string[]> {
  if (readFileSync(IP_FORWARD, 'latin1').trim() === '1') return [];
  const shown = await runTool('ip', ['-4', '-json', 'route', 'show', 'default']);
  const routes = JSON.parse(shown.trim() || '[]') as { readonly dev?: string }[];
  const uplinks = [...new Set(routes.flatMap(({ dev }) => dev ?? []))];
  for (const each of [link, ...uplinks]) await writeFile(`/proc/sys/net/ipv4/conf/${each}/forwarding`, '1');
  return uplinks;
}

interface NftChain {
  readonly family: string;
  readonly table: string;
  readonly name: string;
  readonly hook?: string;
  readonly policy?: string;
}

/** Docker's and ufw's tables are iptables', which nft shows as `ip filter` with the chain FORWARD. */
async function passOtherFirewalls({ link, name }: GuestNetwork): Promise<void> {
  const listed = await runTool('nft', ['-j', 'list', 'chains']);
  const { nftables } = JSON.parse(listed) as { readonly nftables: readonly { readonly chain?: NftChain }[] };
  const own = hostTable(name.replace('berth-', ''));
  const dropping = nftables
    .flatMap(({ chain }) => chain ?? [])
    .filter(({ hook, policy }) => hook === 'forward' && policy === 'drop')
    .filter(({ family, table }) => ['ip', 'inet'].includes(family) && table !== own);
  for (const { family, table, name: chain } of dropping) {
    const rules = await runTool('nft', ['list', 'chain', family, table, chain]);
    if (rules.includes(`"${link}"`)) continue;
    const add = (match: string) => `add rule ${family} ${table} ${chain} ${match} "${link}" accept\n`;
    await runTool('nft', ['-f', '-'], add('iifname') + add('oifname'));
  }
}

/** The second has the resolvers of systemd-resolved, which itself listens on the loopback only. */
const FILES = ['/etc/resolv.conf', '/run/systemd/resolve/resolv.conf'];

/**
 * The resolvers that guests with TAP devices can use: the host's IPv4 resolvers that a packet can be sent to; empty: there is none, and guests have no DNS.
 */
function guestResolvers(files: readonly string[] = FILES): string[] {
  for (const path of files) {
    const found = resolversOf(path).filter((address) => isIP(address) === 4 && !address.startsWith('127.'));
    if (found.length > 0) return found;
  }
  return [];
}

/** The host's resolvers, for the host's own processes. */
export function hostResolvers(): string[] {
  return resolversOf('/etc/resolv.conf');
}

function resolversOf(path: string): string[] {
  try {
    return parseResolvers(readFileSync(path, 'utf8'));
  } catch {
    return [];
  }
}
