/**
 * Removes what the kernel still knows of a guest's connections once its VM has ended: for days, if nobody closed them. They would count
 * against the next VM at this address, and fill the table that all guests share, and the host's own.
 */
import { messageOf } from '../../shared/errors.ts';
import { guestAddress } from './addresses.ts';
import { runTool } from './run-tool.ts';

/** In the guests' network, `path`, and in the host's. @throws why they cannot be removed */
export async function forgetConnections(
  { path }: { readonly path: string },
  ssh_port: number,
): Promise<void> {
  const remove = ['conntrack', '-D', '-s', guestAddress(ssh_port)];
  for (const [file = '', ...args] of [remove, ['nsenter', `--net=${path}`, '--', ...remove]]) {
    try {
      await runTool(file, args);
    } catch (error) {
      // There is none.
      if (!messageOf(error).includes(' 0 flow entries')) throw error;
    }
  }
}
