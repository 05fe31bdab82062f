/** Why guests have no TAP devices here, for `skip`; false if they have. */
import { openGuestNetwork, removeGuestNetwork } from '../../src/host/network/guest-network.ts';

export const NO_TAP: string | false =
  process.getuid?.() === 0 ? await problemHere() : 'TAP devices take root';

async function problemHere(): Promise<string | false> {
  const data_dir = `/nowhere/tap-${process.pid}`;
  const { problem } = await openGuestNetwork(data_dir, 'auto');
  await removeGuestNetwork(data_dir);
  return problem ?? false;
}
