/**
 * Passes the first boot's script from the control plane to the guest. The guest durably notes that it has the script before it
 * runs it, so it runs at most once per disk. It runs in the background and prints to the console. Its end is printed after its
 * writes are synced, because nothing repeats them.
 */
import { type ControlPlaneClient, ControlPlaneUnavailable } from '../../protocol/client.ts';
import { backoffMs, pause } from '../../shared/backoff.ts';
import type { VmId } from '../../shared/ids.ts';
import { GuestAgentError } from '../guest/agent-errors.ts';
import type { GuestAgent } from '../guest/guest-agent.ts';
import { guestExec } from '../guest/guest-command.ts';

const GIVE_MS = 60_000;

/**
 * Reads the script from stdin. Between the durable note and the start it uses only what every guest has. The script's stdin is
 * /dev/null: nobody could answer a prompt on the console.
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
  const { script } = await untilAnswered(() => client.userData({ vm_id }), signal);
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
    throw new GuestAgentError('user_data', `the guest could not store the script: ${said}`);
  }
  await untilAnswered(() => client.userDataGiven({ vm_id }), signal);
}

async function untilAnswered<T>(send: () => Promise<T>, signal: AbortSignal): Promise<T> {
  for (let attempt = 0; ; attempt++) {
    signal.throwIfAborted();
    try {
      return await send();
    } catch (error) {
      if (!(error instanceof ControlPlaneUnavailable)) throw error;
      await pause(backoffMs(attempt, 100, 2_000), signal);
    }
  }
}
