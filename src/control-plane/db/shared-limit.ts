/**
 * Limits how often something may happen in a window of time, at all control planes together. The table `request_counts`
 * has the counts, by the database's clock. The first count of a key begins its window.
 *
 * A process that knows that a key is used up refuses it without a query until the window ends. The table is unlogged:
 * after a crash or a failover of the database, all windows begin anew.
 */
import { sql } from 'kysely';
import { present } from '../../shared/assert.ts';
import type { Db, Tx } from './pool.ts';

export interface SharedLimitOptions {
  /** Part of the keys in the database. */
  readonly name: string;
  readonly most: number;
  readonly window_s: number;
}

export interface Counted {
  readonly is_over: boolean;
  /** How often it may still happen in this window. */
  readonly left: number;
  readonly ends_in_ms: number;
}

/** With so many keys, those whose window has ended are forgotten before one is added. */
const SWEPT_AT = 10_000;
const NOW_MS = sql`(extract(epoch from now()) * 1000)::bigint`;

export class SharedLimit {
  readonly #db: Db;
  readonly #options: SharedLimitOptions;
  readonly #now_ms: () => number;
  /** The keys that are used up, and the ends of their windows. */
  readonly #used_up = new Map<string, number>();

  constructor(db: Db, options: SharedLimitOptions, now_ms: () => number = () => performance.now()) {
    this.#db = db;
    this.#options = options;
    this.#now_ms = now_ms;
  }

  async count(key: string, times = 1): Promise<Counted> {
    const known_ms = this.#usedUpFor_ms(key);
    if (known_ms > 0) return { is_over: true, left: 0, ends_in_ms: known_ms };
    const { name, most, window_s } = this.#options;
    const { count, ends_in_ms } = await countInWindow(this.#db, `${name}:${key}`, window_s, times);
    if (count >= most) this.#noteUsedUp(key, ends_in_ms);
    return { is_over: count > most, left: Math.max(0, most - count), ends_in_ms };
  }

  /** As far as this process knows: the next {@link count} is over. */
  isUsedUp(key: string): boolean {
    return this.#usedUpFor_ms(key) > 0;
  }

  #usedUpFor_ms(key: string): number {
    return (this.#used_up.get(key) ?? 0) - this.#now_ms();
  }

  #noteUsedUp(key: string, ends_in_ms: number): void {
    if (this.#used_up.size >= SWEPT_AT) {
      for (const each of this.#used_up.keys()) if (!this.isUsedUp(each)) this.#used_up.delete(each);
    }
    this.#used_up.set(key, this.#now_ms() + ends_in_ms);
  }
}

/** Counts `times` more of `key`. */
export async function countInWindow(db: Tx, key: string, window_s: number, times = 1) {
  const { rows } = await sql<{ count: number; ends_in_ms: number }>`
    insert into request_counts as c (key, points, expire) values (${key}, ${times}, ${NOW_MS} + ${window_s * 1000})
    on conflict (key) do update set
      points = case when c.expire > ${NOW_MS} then c.points + excluded.points else excluded.points end,
      expire = case when c.expire > ${NOW_MS} then c.expire else excluded.expire end
    returning points as count, (expire - ${NOW_MS})::integer as ends_in_ms`.execute(db);
  return present(rows[0], 'count of a window');
}

/** For the sweep. */
export async function deleteEndedWindows(db: Db): Promise<void> {
  await sql`delete from request_counts where expire < ${NOW_MS}`.execute(db);
}
