/**
 * Ends the waits for a host whose agent has sent no heartbeat for HOST_FRESH_SECONDS. It reads the last heartbeat from the database,
 * because the agent may be connected to another control plane. Work that takes long is no silence: heartbeats go on.
 *
 * Invariant: one query a tick for all hosts that somebody waits for, and none while nobody does.
 */
import type { HostId } from '../../shared/ids.ts';
import type { Db } from '../db/pool.ts';
import { HOST_FRESH_SECONDS, listSilent } from './host-store.ts';

/** Two ticks are less than a call waits to be taken. */
const TICK_MS = 2_000;

export const STANDS_STILL = `The host's agent has given no sign of life for ${HOST_FRESH_SECONDS} s: it stands still, or is cut off.`;

export interface HostWatch {
  /** Calls `onSilent` once when the host falls silent, or at once if it is. Call the returned function when the wait is over. */
  watch(host_id: HostId, onSilent: () => void): () => void;
}

/** For a control plane without hosts. */
export const NO_WATCH: HostWatch = { watch: () => () => undefined };

export class HostSilence implements HostWatch {
  readonly #db: Db;
  readonly #tick_ms: number;
  readonly #watched = new Map<HostId, Set<() => void>>();
  /**
   * Silent at the last tick. One tick is not enough: this process, or the database, may have stood still itself, and then the
   * heartbeats come a moment later.
   */
  #suspected: ReadonlySet<HostId> = new Set();
  #timer: NodeJS.Timeout | undefined;
  #asking = false;

  constructor(db: Db, tick_ms = TICK_MS) {
    this.#db = db;
    this.#tick_ms = tick_ms;
  }

  watch(host_id: HostId, onSilent: () => void): () => void {
    const waits = this.#watched.get(host_id) ?? new Set();
    this.#watched.set(host_id, waits);
    // Two waits may give the same function.
    const tell = () => onSilent();
    waits.add(tell);
    this.#timer ??= setInterval(() => void this.#tick(), this.#tick_ms).unref();
    return () => {
      waits.delete(tell);
      if (waits.size === 0 && this.#watched.get(host_id) === waits) this.#watched.delete(host_id);
      if (this.#watched.size > 0) return;
      clearInterval(this.#timer);
      this.#timer = undefined;
      this.#suspected = new Set();
    };
  }

  async #tick(): Promise<void> {
    if (this.#asking) return;
    this.#asking = true;
    try {
      const silent = await listSilent(this.#db, [...this.#watched.keys()]);
      for (const id of silent) {
        if (!this.#suspected.has(id)) continue;
        for (const tell of [...(this.#watched.get(id) ?? [])]) tell();
      }
      this.#suspected = new Set(silent);
    } catch {
      // Without the database nothing is known of the hosts.
      this.#suspected = new Set();
    } finally {
      this.#asking = false;
    }
  }
}
