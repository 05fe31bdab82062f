/**
 * Holds off connections to a guest that is about to stop, restart or suspend: this machine's new connections to the
 * guest's ports, except to its sshd, are reset until they are released, for a minute at most. Also removes a guest's
 * entries from the connection tracking of the kernel once its VM has ended.
 *
 * The rules have an nftables table of their own, because each agent that starts replaces that of packet-rules.ts,
 * perhaps in the middle of a stop.
 */
import { messageOf } from '../../shared/errors.ts';
import { guestAddress } from './addresses.ts';
import { runTool } from './run-tool.ts';

/** Longer than a stop takes. An agent that dies in one would not release them. */
const HELD = '60s';
const SET = 'drained';

interface Held {
  /** The host's table, whose name its own extends. */
  readonly table: string;
  /** The host's end of the link to the guests. */
  readonly link: string;
}

function tableOf({ table }: Held): string {
  return `inet ${table}_${SET}`;
}

/** @throws why they cannot be held */
export async function holdConnections(network: Held, address: string): Promise<void> {
  const table = tableOf(network);
  const rules = [
    `table ${table} {`,
    `  set ${SET} { type ipv4_addr; flags timeout; }`,
    '  chain output { type filter hook output priority filter; policy accept; }',
    '}',
    `flush chain ${table} output`,
    `add rule ${table} output oifname "${network.link}" ip daddr @${SET} tcp dport != 22 ct state new reject with tcp reset`,
    // One that is held already would keep its old timeout.
    `add element ${table} ${SET} { ${address} }`,
    `delete element ${table} ${SET} { ${address} }`,
    `add element ${table} ${SET} { ${address} timeout ${HELD} }`,
    '',
  ];
  await runTool('nft', ['-f', '-'], rules.join('\n'));
}

/** Also when they are not held. @throws why they cannot be released */
export async function releaseConnections(network: Held, address: string): Promise<void> {
  if (!(await areHeld(network, address))) return;
  await runTool('nft', ['delete', 'element', ...tableOf(network).split(' '), SET, `{ ${address} }`]);
}

/** By this agent, or by one before it. */
export function areHeld(network: Held, address: string): Promise<boolean> {
  return runTool('nft', ['get', 'element', ...tableOf(network).split(' '), SET, `{ ${address} }`]).then(
    () => true,
    () => false,
  );
}

/** Releases all. */
export async function removeHeld(network: Held): Promise<void> {
  const table = tableOf(network);
  await runTool('nft', ['-f', '-'], `table ${table} {}\ndelete table ${table}\n`).catch(() => undefined);
}

/**
 * Removes what the kernel still knows of a guest's connections once its VM has ended: for days, if nobody closed them. They would count
 * against the next VM at this address, and fill the table that all guests share, and the host's own.
 *
 * In the guests' network, `path`, and in the host's. @throws why they cannot be removed
 */
export async function forgetConnections({ path }: { readonly path: string }, slot: number): Promise<void> {
  const remove = ['conntrack', '-D', '-s', guestAddress(slot)];
  for (const [file = '', ...args] of [remove, ['nsenter', `--net=${path}`, '--', ...remove]]) {
    try {
      await runTool(file, args);
    } catch (error) {
      // There is none.
      if (!messageOf(error).includes(' 0 flow entries')) throw error;
    }
  }
}
