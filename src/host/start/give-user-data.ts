/**
 * The script for the first boot, from the control plane to the guest. The guest notes durably that it has it before it
 * begins, so it runs at most once on a disk; it runs on beside what follows, and prints to the console. That it ended is
 * said when what it wrote is on the disk: a VM that dies after that has lost none of it, since nothing would run again.
 */
import { type ControlPlaneClient, ControlPlaneUnavailable } from '../../agent-api/client.ts';
import { backoffMs, pause } from '../../lib/backoff.ts';
import type { VmId } from '../../lib/ids.ts';
import { GuestAgentError } from '../guest/agent-errors.ts';
import type { GuestAgent } from '../guest/guest-agent.ts';
import { guestExec } from '../guest/guest-command.ts';

const GIVE_MS = 60_000;

/**
 * Reads the script from its input. Nothing that a guest may lack stands between the note that it begins and its begin. The console's
 * line is not its terminal: nobody could answer it there.
 */
const TAKE = `set -eu
bb=/usr/lib/berth/busybox
folder=/var/lib/berth
$bb mkdir -p "$folder"
[ ! -e "$folder/user-data.begun" ] || exit 0
umask 077
$bb cat > "$folder/user-data"
$bb chmod 0700 "$folder/user-data"
$bb sync "$folder/user-data"
umask 022
cd /root
export HOME=/root
: > "$folder/user-data.begun"
$bb sync "$folder/user-data.begun" "$folder"
$bb setsid sh -c '
  echo "berth: user data begins"
  "$0"
  status=$?
  sync
  echo "berth: user data ended with $status"
  rm -f "$0"
' "$folder/user-data" < /dev/null > /dev/ttyS0 2>&1 &
`;

/** @throws what the guest agent rejects with, or the signal's reason */
export async function giveUserData(
  client: ControlPlaneClient,
  agent: GuestAgent,
  vm_id: VmId,
  signal: AbortSignal,
): Promise<void> {
  const { script } = await untilHeard(() => client.userData({ vm_id }), signal);
  if (script === null) return;
  const args = ['-c', TAKE, 'berth-user-data'];
  const result = await guestExec(agent, {
    path: '/bin/sh',
    args,
    input: script,
    timeout_ms: GIVE_MS,
    signal,
  });
  if (result.exit_code !== 0) {
    const said = result.stderr.toString('utf8');
    throw new GuestAgentError('user_data', `the guest could not keep it: ${said}`);
  }
  await untilHeard(() => client.userDataGiven({ vm_id }), signal);
}

async function untilHeard<T>(say: () => Promise<T>, signal: AbortSignal): Promise<T> {
  for (let attempt = 0; ; attempt++) {
    signal.throwIfAborted();
    try {
      return await say();
    } catch (error) {
      if (!(error instanceof ControlPlaneUnavailable)) throw error;
      await pause(backoffMs(attempt, 100, 2_000), signal);
    }
  }
}
