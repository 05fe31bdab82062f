/**
 * Decides when deadlines of transient states are enforced. Pure.
 *
 * Deadlines are times of the database's clock, and pass also while this does not run: the control plane or its database was down,
 * or the machine slept. That clock may also be set, or another server with another clock may lead. The hosts' queued reports arrive
 * within seconds after that, so enforcement waits for a grace period. Without it, a VM that has long been running would fail because
 * its report had not arrived yet.
 */

/** A longer gap between two checks counts as an interruption. */
const GAP_MS = 10_000;
/** Long enough for a restarted agent, which adopts its VMs before it reports. */
export const GRACE_MS = 60_000;

export class DeadlineMonitor {
  #checked_ms: number | null = null;
  #watching_since_ms = 0;

  /** Whether to enforce deadlines now. `now_ms`: of the database's clock. */
  check(now_ms: number): boolean {
    if (this.#checked_ms === null || Math.abs(now_ms - this.#checked_ms) > GAP_MS)
      this.#watching_since_ms = now_ms;
    this.#checked_ms = now_ms;
    return now_ms - this.#watching_since_ms >= GRACE_MS;
  }

  /** The database was unreachable: the grace period starts again. */
  reset(): void {
    this.#checked_ms = null;
  }
}
