/** The guest's part in a VM's life: coming up, rebooting, shutting down; each with a limit to the patience. */
import type { HostKey } from '../../agent-api/types.ts';
import { backoffMs, pause } from '../../lib/backoff.ts';
import { thaw } from '../flush/freeze.ts';
import { GuestAgentTimeoutError } from '../guest/agent-errors.ts';
import { readHostKeys, waitForSshd } from '../guest/sshd.ts';
import type { KeyPusher } from '../keys/key-pusher.ts';
import type { Machine } from '../machine/machine.ts';

const GUEST_UP_MS = 300_000;
/** One that goes on from its memory, or a template, need not boot. */
const GUEST_AWAKE_MS = 120_000;
/** On a host with more guests booting than processors its sshd may come long after its agent. */
const SSHD_UP_MS = 180_000;
const CLOCK_MS = 20_000;
const APPLY_TRIES = 10;

export interface GuestUp {
  readonly ssh_address: string;
  readonly host_keys: readonly HostKey[];
  /** Fingerprints. */
  readonly applied_keys: readonly string[];
  /** It goes on from saved memory. */
  readonly resumed: boolean;
}

/** Waits for the guest and puts its keys in place; null when it was reset, went off or died meanwhile. */
export async function awaitGuest(
  machine: Machine,
  keys: KeyPusher,
  signal: AbortSignal,
  /** What else the guest is given before it is said to run. */
  give: (signal: AbortSignal) => Promise<void> = async () => undefined,
): Promise<GuestUp | null> {
  const { resets } = machine;
  const resumed = machine.record.resuming === true;
  const port = machine.record.ssh_forward_port;
  const otherwise = () =>
    machine.gone || machine.broken || machine.view !== 'booting' || machine.resets !== resets;
  try {
    const undisturbed = AbortSignal.any([signal, machine.bootEnded(resets)]);
    if (resumed) await wakeGuest(machine, undisturbed);
    else await agentUp(machine, machine.record.template ? GUEST_AWAKE_MS : GUEST_UP_MS, undisturbed);
    // Of before a reset: that thaws, but what was sent may be carried out after it, and nothing is asked of a guest that may be frozen.
    if (!resumed && machine.agent.maybe_frozen) await machine.agent.thaw().catch(() => undefined);
    // Side by side: all wait for the guest, and nobody gets in before the keys are there. The host key is there before the
    // guest's agent, but for images that make it beside: where sshd listens, it is.
    const [applied_keys, early] = await Promise.all([
      applyUntilClear(keys, machine, undisturbed),
      readHostKeys(machine.agent).catch(() => null),
      waitForSshd(machine.agent, port, SSHD_UP_MS, undisturbed),
    ]);
    const host_keys = early ?? (await untilAnswered(() => readHostKeys(machine.agent), undisturbed));
    await give(AbortSignal.any([signal, machine.bootEnded(resets)]));
    if (otherwise()) return null;
    if (resumed) setClock(machine, signal);
    if (resumed) await machine.update({ resuming: false });
    if (machine.record.template) await machine.update({ template: null });
    machine.markUp(resets);
    return { ssh_address: `127.0.0.1:${port}`, host_keys, applied_keys, resumed };
  } catch (error) {
    if (otherwise()) return null;
    throw error;
  }
}

/** A guest that waits for room on this host is not to blame for its silence. */
async function agentUp(machine: Machine, timeout_ms: number, signal: AbortSignal): Promise<void> {
  for (;;) {
    try {
      return await machine.agent.waitUntilUp(timeout_ms, signal);
    } catch (error) {
      if (machine.stall === null || !(error instanceof GuestAgentTimeoutError)) throw error;
    }
  }
}

/**
 * Connections of before (of a guest that was adopted or resumed) may end by themselves just then, and one whose process
 * has just gone cannot be judged.
 */
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

/** A guest that goes on from its memory: its file systems thaw. */
async function wakeGuest(machine: Machine, signal: AbortSignal): Promise<void> {
  const deadline = performance.now() + GUEST_AWAKE_MS;
  while (machine.record.frozen) {
    signal.throwIfAborted();
    await thaw(machine);
    if (performance.now() >= deadline) break;
  }
  if (machine.record.frozen) throw new Error('its file systems do not thaw');
  await machine.agent.waitUntilUp(GUEST_AWAKE_MS, signal);
}

/**
 * Tells a guest how long it was away. Its clock is right as it hears that, before anybody is let in; its answer is not waited
 * for, because it writes its hardware clock first, and for that waits for a second to begin.
 */
function setClock(machine: Machine, signal: AbortSignal): void {
  const set = () => machine.agent.setTime(BigInt(Date.now()) * 1_000_000n, { timeout_ms: CLOCK_MS });
  untilAnswered(set, signal).catch(() => undefined);
}

/** A guest that has answered before, or its QEMU, may be silent for a while: that is not worth its memory, nor its start. */
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
