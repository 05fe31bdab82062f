/**
 * The open streams and consoles of organisations. Their quota counts those at all control planes; each control plane has a number of
 * its own that it can hold. The database follows: what it misses while it is away, or has forgotten after a crash, it is told
 * within 2 s.
 */
import { randomBytes } from 'node:crypto';
import { type Db, transaction } from '../db/pool.ts';
import { AppError } from '../lib/errors.ts';
import type { OrgId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import type { QuotaLimits } from '../lib/quotas.ts';
import { addStreams, deleteStreamsOf, renewStreams } from './open-stream-store.ts';
import { checkQuota } from './quotas.ts';

const MAX_OPEN = 10_000;
const RETRY_S = 15;
const RENEW_MS = 2_000;

export interface OpenStreamsOptions {
  readonly db: Db;
  readonly quotas: QuotaLimits;
  readonly log: Log;
}

export class OpenStreams {
  readonly #id = randomBytes(6).toString('hex');
  readonly #options: OpenStreamsOptions;
  readonly #held = new Map<OrgId, number>();
  /** The database may have another number than {@link #held}. */
  readonly #unsure = new Set<OrgId>();
  #timer: NodeJS.Timeout | undefined;
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
    const { db, quotas } = this.#options;
    this.#count += 1;
    try {
      await transaction(db, async (tx) => {
        await checkQuota(tx, quotas, org_id, { streams: 1 });
        await addStreams(tx, this.#id, org_id, 1);
      });
    } catch (error) {
      this.#count -= 1;
      // Nobody knows whether it was committed.
      if (!(error instanceof AppError)) this.#unsure.add(org_id);
      throw error;
    }
    this.#held.set(org_id, (this.#held.get(org_id) ?? 0) + 1);
    this.#timer ??= setInterval(() => void this.#renew(), RENEW_MS).unref();
    return () => this.#close(org_id);
  }

  /** The process ends: the others count its streams no longer. */
  async end(): Promise<void> {
    this.#ended = true;
    clearInterval(this.#timer);
    await deleteStreamsOf(this.#options.db, this.#id).catch((error: unknown) => this.#warn(error));
  }

  #close(org_id: OrgId): void {
    const left = (this.#held.get(org_id) ?? 1) - 1;
    if (left === 0) this.#held.delete(org_id);
    else this.#held.set(org_id, left);
    this.#count -= 1;
    if (this.#ended) return;
    addStreams(this.#options.db, this.#id, org_id, -1).catch((error: unknown) => {
      this.#unsure.add(org_id);
      this.#warn(error);
    });
  }

  async #renew(): Promise<void> {
    const unsure = new Set(this.#unsure);
    this.#unsure.clear();
    const none = [...unsure].map((org_id) => [org_id, 0] as const);
    const held = new Map([...none, ...this.#held]);
    try {
      if (held.size > 0) await renewStreams(this.#options.db, this.#id, held, unsure);
    } catch (error) {
      for (const each of unsure) this.#unsure.add(each);
      this.#warn(error);
    }
  }

  #warn(error: unknown): void {
    this.#options.log.warn({ err: error }, 'the database was not told how many streams are open here');
  }
}
