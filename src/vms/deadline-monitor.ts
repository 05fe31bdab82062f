/**
 * When deadlines of transient states count. Pure.
 *
 * They are times of day, and pass while nobody watches: the control plane or its database was away, or the whole machine
 * slept. What the hosts had to say meanwhile waits, and comes within seconds of each other; until then nothing is overdue, or
 * a VM that has been running for long would be ended because its start was not heard of.
 */

/** Looks further apart than this do not count as watching. */
const GAP_MS = 10_000;
/** For an agent that comes back, too: it adopts its VMs first. */
export const GRACE_MS = 60_000;

export class DeadlineMonitor {
  #looked_ms: number | null = null;
  #since_ms = 0;

  /** Whether deadlines count by now. `now_ms`: of the time of day, as they are. */
  look(now_ms: number): boolean {
    if (this.#looked_ms === null || Math.abs(now_ms - this.#looked_ms) > GAP_MS) this.#since_ms = now_ms;
    this.#looked_ms = now_ms;
    return now_ms - this.#since_ms >= GRACE_MS;
  }

  /** The database was not seen: it begins anew. */
  forget(): void {
    this.#looked_ms = null;
  }
}
