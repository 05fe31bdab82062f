/**
 * Which hosts have been silent past their lease. Pure: what the database says of renewals and this process's monotonic
 * clock go in.
 *
 * A host counts its lease from the sending of a renewal, and this from having seen it, which is later; the margin is
 * for the pausing of its VMs. No clock of another machine, nor the time of day, is compared with anything: a step of
 * the clock loses no host. Whoever has not watched for a while (just started, no database, paused itself) has missed
 * renewals, and gives every host its whole lease anew.
 */
import type { HostId } from '../lib/ids.ts';

/** Looks further apart than this do not count as watching. */
const GAP_MS = 10_000;

export interface LeaseState {
  readonly id: HostId;
  readonly name: string;
  readonly beat: number;
  readonly lease_ms: number | null;
  /** Taken out of the fleet: nobody waits for it. */
  readonly removed: boolean;
}

/** How long after a lease's end its host's VMs are given up. */
export function marginMs(lease_ms: number): number {
  return 2_000 + lease_ms / 4;
}

export class LeaseMonitor {
  readonly #since = new Map<HostId, { readonly beat: number; readonly seen_ms: number }>();
  #looked_ms: number | null = null;

  /** Those of the hosts whose silence has outlasted lease and margin. `now_ms`: of a monotonic clock. */
  look(hosts: readonly LeaseState[], now_ms: number): LeaseState[] {
    if (this.#looked_ms !== null && now_ms - this.#looked_ms > GAP_MS) this.forget();
    this.#looked_ms = now_ms;
    const present = new Set(hosts.map(({ id }) => id));
    for (const id of this.#since.keys()) if (!present.has(id)) this.#since.delete(id);
    return hosts.filter((host) => {
      if (host.removed) return true;
      const since = this.#since.get(host.id);
      if (since?.beat !== host.beat) {
        this.#since.set(host.id, { beat: host.beat, seen_ms: now_ms });
        return false;
      }
      return host.lease_ms !== null && now_ms - since.seen_ms >= host.lease_ms + marginMs(host.lease_ms);
    });
  }

  /** The world was not seen: all begins anew. */
  forget(): void {
    this.#since.clear();
    this.#looked_ms = null;
  }
}
