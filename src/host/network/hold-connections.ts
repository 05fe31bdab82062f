/** Refuses this machine's new connections to a guest's ports, but its sshd, until they are released, or for a minute. */
import { DRAINED } from './host-rules.ts';
import { runTool } from './run-tool.ts';

/** Longer than a stop takes. An agent that dies in one would not release them. */
const HELD = '60s';

interface HostTable {
  /** The table that has the set {@link DRAINED}. */
  readonly table: string;
}

/** @throws why they cannot be held */
export async function holdConnections({ table }: HostTable, address: string): Promise<void> {
  await runTool('nft', ['add', 'element', 'inet', table, DRAINED, `{ ${address} timeout ${HELD} }`]);
}

/** Also when they are not held. @throws why they cannot be released */
export async function releaseConnections({ table }: HostTable, address: string): Promise<void> {
  // Deleting what is not there would fail.
  const element = `element inet ${table} ${DRAINED} { ${address} }`;
  await runTool('nft', ['-f', '-'], `add ${element}\ndelete ${element}\n`);
}
