/**
 * Waits until a booting or resumed guest is ready: its agent answers, its SSH keys are in place, and it is known
 * whether its sshd accepts connections. A guest whose agent answers counts as running, even if nobody can log in. The
 * reason is then the machine's `access_problem`, until somebody can.
 */
import { type ControlPlaneClient, ControlPlaneUnavailable } from '../../protocol/client.ts';
import type { HostKey, Reason } from '../../protocol/types.ts';
import type { VmId } from '../../shared/ids.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import { thaw } from '../disk/flush-disk.ts';
import type { KeyPusher } from '../guest/authorized-keys.ts';
import { type GuestAgent, GuestAgentError, GuestAgentTimeoutError } from '../guest/guest-agent.ts';
import { guestExec } from '../guest/guest-commands.ts';
import type { SecretPusher } from '../guest/guest-secrets.ts';
import { readHostKeys, type Sshd, waitForSsh, waitForSshd } from '../guest/sshd.ts';
import { sshEndpoint } from '../network/addresses.ts';
import type { Machine } from './machine.ts';

const GUEST_UP_MS = 300_000;
/** A guest from saved memory or a template need not boot. */
const GUEST_AWAKE_MS = 120_000;
/** If more guests boot than the host has processors, sshd may start long after the agent. */
const SSHD_UP_MS = 180_000;
/** How often a guest is tried that nobody can log in to. */
const ACCESS_TRY_MS = 5_000;
const CLOCK_MS = 20_000;
const APPLY_TRIES = 10;

export interface GuestUp {
  readonly ssh_address: string;
  readonly host_keys: readonly HostKey[];
  /** Fingerprints. */
  readonly applied_keys: readonly string[];
  /** It was resumed from saved memory. */
  readonly resumed: boolean;
  /** Why nobody can log in. */
  readonly access_problem: Reason | null;
}

/**
 * Waits for the guest and applies its keys and secrets. null: it was reset, powered off or died meanwhile. `patience` ends the wait
 * for its agent; what sshd and the network do is found out in any case.
 */
export async function awaitGuest(
  machine: Machine,
  { keys, secrets }: { readonly keys: KeyPusher; readonly secrets: SecretPusher },
  { signal, patience }: { readonly signal: AbortSignal; readonly patience: AbortSignal },
  /** What else the guest gets before it is reported as running. */
  give: (signal: AbortSignal) => Promise<void> = async () => undefined,
): Promise<GuestUp | null> {
  const { resets } = machine;
  const resumed = machine.record.resuming === true;
  const sshd = sshEndpoint(machine.record.network);
  const otherwise = () =>
    machine.gone || machine.broken || machine.view !== 'booting' || machine.resets !== resets;
  try {
    const undisturbed = AbortSignal.any([patience, machine.bootEnded(resets)]);
    const while_up = AbortSignal.any([signal, machine.bootEnded(resets)]);
    if (resumed) await wakeGuest(machine, undisturbed);
    else await agentUp(machine, machine.record.template ? GUEST_AWAKE_MS : GUEST_UP_MS, undisturbed);
    // A freeze from before a reset may be executed after it.
    if (!resumed && machine.agent.maybe_frozen) await machine.agent.thaw().catch(() => undefined);
    // In parallel: all of these wait for the guest. Some images generate the host key beside the agent, so its first read may
    // fail; it exists once sshd listens.
    const [applied_keys, early, access_problem] = await Promise.all([
      applyUntilClear(keys, machine, undisturbed),
      readHostKeys(machine.agent).catch(() => null),
      waitForSshd(machine.agent, sshd, SSHD_UP_MS, while_up),
      secrets.apply(machine),
    ]);
    const late = access_problem ? [] : untilAnswered(() => readHostKeys(machine.agent), undisturbed);
    const host_keys = early ?? (await late);
    await give(while_up);
    if (otherwise()) return null;
    if (resumed) setClock(machine, signal);
    if (resumed) await machine.update({ resuming: false });
    if (machine.record.template) await machine.update({ template: null });
    machine.markUp(resets);
    machine.noteAccess(access_problem, resets);
    if (access_problem) void untilAccess(machine, sshd, while_up);
    return { ssh_address: `${sshd.host}:${sshd.port}`, host_keys, applied_keys, resumed, access_problem };
  } catch (error) {
    if (otherwise()) return null;
    throw error;
  }
}

/** A guest that waits for this host's disk cannot answer: keep waiting. */
async function agentUp(machine: Machine, timeout_ms: number, signal: AbortSignal): Promise<void> {
  for (;;) {
    try {
      return await machine.agent.waitUntilUp(timeout_ms, signal);
    } catch (error) {
      if (machine.stall === null || !(error instanceof GuestAgentTimeoutError)) throw error;
    }
  }
}

/** Somebody may repair sshd or the network, by a command or at the console. */
async function untilAccess(machine: Machine, sshd: Sshd, signal: AbortSignal): Promise<void> {
  const { resets } = machine;
  while (await pause(ACCESS_TRY_MS, signal)) {
    const greeted = await waitForSsh(sshd, ACCESS_TRY_MS, signal).then(
      () => true,
      () => false,
    );
    if (greeted && !signal.aborted) return machine.noteAccess(null, resets);
  }
}

/** Retries: a connection of an adopted or resumed guest cannot be judged while its process is ending. */
async function applyUntilClear(
  keys: KeyPusher,
  machine: Machine,
  signal: AbortSignal,
): Promise<readonly string[]> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await keys.apply(machine);
    } catch (error) {
      if (attempt === APPLY_TRIES || !(await pause(backoffMs(attempt, 200, 2_000), signal))) throw error;
    }
  }
}

/** Thaws a guest that was resumed from its memory. */
async function wakeGuest(machine: Machine, signal: AbortSignal): Promise<void> {
  const deadline = performance.now() + GUEST_AWAKE_MS;
  while (machine.record.frozen) {
    signal.throwIfAborted();
    await thaw(machine);
    if (performance.now() >= deadline) break;
  }
  if (machine.record.frozen) throw new Error('its file systems could not be thawed');
  await machine.agent.waitUntilUp(GUEST_AWAKE_MS, signal);
}

/**
 * Sets a resumed guest's clock. The guest sets it when it receives the call, before anybody can log in. The answer is not awaited:
 * the guest first writes its hardware clock, for which it waits until a second begins.
 */
function setClock(machine: Machine, signal: AbortSignal): void {
  const set = () => machine.agent.setTime(BigInt(Date.now()) * 1_000_000n, { timeout_ms: CLOCK_MS });
  untilAnswered(set, signal).catch(() => undefined);
}

/** Retries: a guest that has answered before may be silent for a while, which is no reason to fail its start. */
async function untilAnswered<T>(ask: () => Promise<T>, signal: AbortSignal): Promise<T> {
  const deadline = performance.now() + GUEST_AWAKE_MS;
  for (let attempt = 0; ; attempt++) {
    try {
      return await ask();
    } catch (error) {
      const silent = error instanceof GuestAgentTimeoutError && performance.now() < deadline;
      if (!silent || !(await pause(backoffMs(attempt, 100, 2_000), signal))) throw error;
    }
  }
}

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

/**
 * Passes the first boot's script from the control plane to the guest. The guest durably notes that it has the script before it
 * runs it, so it runs at most once per disk. It runs in the background and prints to the console. Its end is printed after its
 * writes are synced, because nothing repeats them.
 *
 * @throws what the guest agent rejects with, or the signal's reason
 */
export async function giveUserData(
  client: ControlPlaneClient,
  agent: GuestAgent,
  vm_id: VmId,
  signal: AbortSignal,
): Promise<void> {
  const { script } = await untilReachable(() => client.userData({ vm_id }), signal);
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
  await untilReachable(() => client.userDataGiven({ vm_id }), signal);
}

async function untilReachable<T>(send: () => Promise<T>, signal: AbortSignal): Promise<T> {
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
