/**
 * Decides which hosts' leases have expired. Pure: renewals as the database knows them, and this process's monotonic
 * clock, go in.
 *
 * A host counts its lease from when it sent a renewal; the monitor counts from when it saw the renewal, which is later. The
 * margin covers the time that the host needs to pause its VMs. No clock of another machine and no time of day is compared,
 * so a clock step expires nothing. A monitor that was interrupted (a start, no database, a paused process) has missed
 * renewals: it gives every host a whole lease again.
 */
import type { HostId } from '../../shared/ids.ts';

/** A longer gap between two checks counts as an interruption. */
const GAP_MS = 10_000;

export interface LeaseState {
  readonly id: HostId;
  readonly name: string;
  /** Counts the host's renewals. */
  readonly beat: number;
  readonly lease_ms: number;
  /** Marked as lost since its last renewal. */
  readonly lost: boolean;
}

/** How long after the end of its lease a host counts as expired. */
export function marginMs(lease_ms: number): number {
  return 2_000 + lease_ms / 8;
}

export class LeaseMonitor {
  readonly #renewals = new Map<HostId, { readonly beat: number; readonly seen_ms: number }>();
  #checked_ms: number | null = null;

  /** The hosts without a renewal for lease and margin. `now_ms` is of a monotonic clock. */
  expired(hosts: readonly LeaseState[], now_ms: number): LeaseState[] {
    if (this.#checked_ms !== null && now_ms - this.#checked_ms > GAP_MS) this.reset();
    this.#checked_ms = now_ms;
    const present = new Set(hosts.map(({ id }) => id));
    for (const id of this.#renewals.keys()) if (!present.has(id)) this.#renewals.delete(id);
    return hosts.filter((host) => {
      const last = this.#renewals.get(host.id);
      if (last?.beat !== host.beat) {
        this.#renewals.set(host.id, { beat: host.beat, seen_ms: now_ms });
        return false;
      }
      return now_ms - last.seen_ms >= host.lease_ms + marginMs(host.lease_ms);
    });
  }

  /** After an interruption every host gets a whole lease again. */
  reset(): void {
    this.#renewals.clear();
    this.#checked_ms = null;
  }
}
