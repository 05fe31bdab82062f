/**
 * Lets the host forward its guests' packets, and nothing else that it did not forward before.
 *
 * A packet is forwarded only if every firewall's forward chain accepts it. Docker and ufw drop what they do not know, so such a
 * chain gets one more rule at its end: what its owner refuses by a rule stays refused.
 */
import { readFileSync } from 'node:fs';
import { writeFile } from 'node:fs/promises';
import { messageOf } from '../../shared/errors.ts';
import { type GuestNetwork, mendGuestNetwork } from './guest-network.ts';
import { guestResolvers } from './resolvers.ts';
import { runTool } from './run-tool.ts';
import { hostChains } from './tap-rules.ts';
import { egressTable } from './user-network-rules.ts';

const IP_FORWARD = '/proc/sys/net/ipv4/ip_forward';

export interface Mended {
  /** For the table of egress.ts. */
  readonly chains: readonly string[];
  /** What guests lack; for people. */
  readonly problem: string | null;
}

/** Mends the guests' network, and lets the host forward for it. Never throws; repeat it. */
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
  const own = egressTable(name.replace('berth-', ''));
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
