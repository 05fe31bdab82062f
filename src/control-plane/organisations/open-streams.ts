/**
 * Counts the open streams and consoles of organisations. An organisation's quota covers its streams at all control
 * planes. Each control plane also holds at most 10,000 streams in all.
 *
 * A control plane keeps its own counts in memory. It writes each change to the database, and every 2 s all of its
 * counts. So the database catches up within 2 s after an outage or a crash.
 */
import { randomBytes } from 'node:crypto';
import { AppError } from '../../shared/errors.ts';
import type { OrgId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import type { QuotaLimits } from '../../shared/quotas.ts';
import { pause } from '../../shared/retry.ts';
import { Turns } from '../../shared/turns.ts';
import { type Db, transaction } from '../db/pool.ts';
import { checkQuota } from './quotas.ts';
import { addStreams, deleteStreamsOf, hasSilentStreams, renewStreams } from './store.ts';

const MAX_OPEN = 10_000;
const RETRY_S = 15;
const RENEW_MS = 2_000;
const ASK_AGAIN_MS = 500;

export interface OpenStreamsOptions {
  readonly db: Db;
  readonly quotas: QuotaLimits;
  readonly log: Log;
}

export class OpenStreams {
  readonly #id = randomBytes(6).toString('hex');
  readonly #options: OpenStreamsOptions;
  /** With 0 until the database was told. */
  readonly #held = new Map<OrgId, number>();
  /** One at a time: all of an organisation wait for one row, and would hold a connection to the database each. */
  readonly #asking = new Turns<OrgId>(1);
  #timer: NodeJS.Timeout | undefined;
  #renewing = false;
  #count = 0;
  #ended = false;

  constructor(options: OpenStreamsOptions) {
    this.#options = options;
  }

  /** Call the returned function once, when the stream has ended. @throws AppError QUOTA_EXCEEDED, UNAVAILABLE, NOT_FOUND */
  async open(org_id: OrgId): Promise<() => void> {
    if (this.#count >= MAX_OPEN) {
      throw new AppError('UNAVAILABLE', {
        message: 'Too many streams and consoles are open. Try again shortly.',
        retry_after_seconds: RETRY_S,
      });
    }
    this.#count += 1;
    this.#timer ??= setInterval(() => void this.#renew(), RENEW_MS).unref();
    try {
      await this.#asking.take(org_id, () => this.#ask(org_id));
    } catch (error) {
      this.#count -= 1;
      // It may have been committed all the same.
      this.#hold(org_id, 0);
      throw error;
    }
    this.#hold(org_id, 1);
    return () => this.#close(org_id);
  }

  /** The process ends: the others count its streams no longer. */
  async end(): Promise<void> {
    this.#ended = true;
    clearInterval(this.#timer);
    await deleteStreamsOf(this.#options.db, this.#id).catch((error: unknown) => this.#warn(error));
  }

  /** Those who lost their streams with another control plane wait until these count no longer. */
  async #ask(org_id: OrgId): Promise<void> {
    const { db, quotas } = this.#options;
    for (;;) {
      try {
        return await transaction(db, async (tx) => {
          await checkQuota(tx, quotas, org_id, { streams: 1 });
          await addStreams(tx, this.#id, org_id, 1);
        });
      } catch (error) {
        const is_full = error instanceof AppError && error.code === 'QUOTA_EXCEEDED';
        if (!is_full || !(await hasSilentStreams(db, org_id))) throw error;
        await pause(ASK_AGAIN_MS);
      }
    }
  }

  #close(org_id: OrgId): void {
    this.#hold(org_id, -1);
    this.#count -= 1;
    if (this.#ended) return;
    addStreams(this.#options.db, this.#id, org_id, -1).catch((error: unknown) => this.#warn(error));
  }

  #hold(org_id: OrgId, more: -1 | 0 | 1): void {
    this.#held.set(org_id, (this.#held.get(org_id) ?? 0) + more);
  }

  async #renew(): Promise<void> {
    if (this.#renewing || this.#held.size === 0) return;
    this.#renewing = true;
    const held = new Map(this.#held);
    try {
      await renewStreams(this.#options.db, this.#id, held);
      for (const [org_id, count] of held)
        if (count === 0 && this.#held.get(org_id) === 0) this.#held.delete(org_id);
    } catch (error) {
      this.#warn(error);
    }
    this.#renewing = false;
  }

  #warn(error: unknown): void {
    this.#options.log.warn({ err: error }, 'the database was not told how many streams are open here');
  }
}
