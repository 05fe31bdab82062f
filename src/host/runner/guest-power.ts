/** Reboot and power-off of a guest, by its agent if it answers in time. */
import type { ControlPlaneClient } from '../../protocol/client.ts';
import { reportLogins } from '../keys/login-watch.ts';
import type { Machine } from '../machine/machine.ts';

/** How long the guest may take to shut down, or to begin a reboot. */
const GUEST_PART_MS = 10_000;

/** Reboots by the guest's agent, or by a reset if that takes too long. False: the machine powered off or died instead. */
export async function rebootGuest(machine: Machine, signal: AbortSignal): Promise<boolean> {
  const { resets } = machine;
  const reset = machine.qmp.waitForEvent((event) => event.event === 'RESET', {
    timeout_ms: GUEST_PART_MS,
    signal,
  });
  reset.catch(() => undefined);
  await machine.agent.shutdown('reboot').catch(() => undefined);
  await reset.catch(() => undefined);
  if (signal.aborted || machine.gone || machine.view === 'off') return false;
  if (machine.resets === resets) await machine.qmp.execute('system_reset', undefined);
  return true;
}

/**
 * Shuts down by the guest's agent, or halts the machine if that takes too long. `force` halts it at once: the agent may hang, so
 * it is not even asked for its logins.
 */
export async function powerOffGuest(
  machine: Machine,
  client: ControlPlaneClient,
  force: boolean,
  signal: AbortSignal,
): Promise<void> {
  if (!force) {
    await reportLogins(machine, client);
    const off = machine.qmp.waitForEvent((event) => event.event === 'SHUTDOWN', {
      timeout_ms: GUEST_PART_MS,
      signal,
    });
    off.catch(() => undefined);
    await machine.agent.shutdown('powerdown', { timeout_ms: GUEST_PART_MS }).catch(() => undefined);
    await off.catch(() => undefined);
    if (signal.aborted || machine.gone) return;
  }
  if (machine.view !== 'off') await machine.halt();
}
