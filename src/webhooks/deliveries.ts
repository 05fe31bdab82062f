/**
 * The senders of one process: takes the jobs of both lanes, each of which names a webhook, and drains it under its lease.
 * Rows are the truth and jobs are hints: whatever is lost with a process is found again by {@link reviveForgotten}.
 */
import { randomUUID } from 'node:crypto';
import type { NotifyHub } from '../db/notify.ts';
import type { Db } from '../db/pool.ts';
import { runJobs } from '../jobs/run-jobs.ts';
import { addJobs } from '../jobs/store.ts';
import type { WebhookId } from '../lib/ids.ts';
import type { Log } from '../lib/log.ts';
import type { Sealer } from '../lib/seal.ts';
import { changeOf } from './changed.ts';
import { Drain, type DrainParts } from './drain.ts';
import { giveLease, listForgotten, nextDue, renewLeases, setLane, takeLease } from './drain-store.ts';
import { FAST, type Lane, SLOW, SLOW_MS, sendJob } from './lanes.ts';
import type { Outbound } from './outbound/outbound.ts';
import { failLeftBehind } from './store.ts';
import { UnprovenRequests } from './unproven.ts';

export interface DeliveryParts {
  readonly url: string;
  readonly db: Db;
  readonly hub: NotifyHub;
  readonly log: Log;
  readonly outbound: Outbound;
  readonly secrets: Sealer;
  /** How long another process waits for this one, should it die. Default: 15 s. */
  readonly lease_s?: number;
}

const LEASE_S = 15;
const RENEWALS_PER_LEASE = 4;
/** Deliveries that a process holds, about; each webhook's share is within these bounds. */
const HELD = 16_384;
const WINDOW = { min: 64, max: 512 };
/** Receivers that have a request when the process is told to stop get this long; then it is sent again by the next. */
const GRACE_MS = 5_000;
/** Rows that say they are due and cannot be read are not looked at without end. */
const NOTHING_FOUND_MS = 5_000;

/** Sends until `signal` aborts; resolves when every request has ended and its outcome is written, or it was given up. */
export async function runDeliveries(parts: DeliveryParts, signal: AbortSignal): Promise<void> {
  const senders = new Senders(parts);
  const renew = setInterval(() => senders.renew(), senders.renew_ms);
  const stop = () => senders.stop();
  signal.addEventListener('abort', stop, { once: true });
  const tasks = [FAST, SLOW].map((lane) => ({
    name: lane.task,
    slots: lane.slots,
    work: (payload: unknown) => senders.send(lane, (payload as { webhook_id: WebhookId }).webhook_id),
  }));
  try {
    await runJobs(parts.url, tasks, parts.log, signal);
    await senders.ended();
  } finally {
    signal.removeEventListener('abort', stop);
    clearInterval(renew);
  }
}

/** Makes jobs for webhooks that have something due while nobody sends for them. */
export async function reviveForgotten(db: Db): Promise<void> {
  const forgotten = await listForgotten(db);
  await addJobs(
    db,
    forgotten.map(({ id, slow }) => sendJob(id, slow)),
  );
}

class Senders {
  readonly #parts: DeliveryParts;
  /** Names this process in leases. */
  readonly #owner = randomUUID();
  readonly #give_up = new AbortController();
  readonly #drains = new Map<WebhookId, Drain>();
  readonly #unproven = new UnprovenRequests();
  readonly #under_way = new Set<Promise<void>>();
  readonly #lease_s: number;
  readonly renew_ms: number;
  /** When the leases were renewed, or none was held; all that are held are good for as long as a lease from then. */
  #renewed_ms = performance.now();
  #stopping = false;

  constructor(parts: DeliveryParts) {
    this.#parts = parts;
    this.#lease_s = parts.lease_s ?? LEASE_S;
    this.renew_ms = (this.#lease_s * 1000) / RENEWALS_PER_LEASE;
  }

  readonly #window = () =>
    Math.max(WINDOW.min, Math.min(WINDOW.max, Math.floor(HELD / Math.max(1, this.#drains.size))));

  /** To be called every {@link renew_ms}. What was not renewed in time is let go: another process may send it by then. */
  renew(): void {
    const { db, log } = this.#parts;
    const now_ms = performance.now();
    if (this.#drains.size === 0) {
      this.#renewed_ms = now_ms;
      return;
    }
    // By the next time it would be too late.
    if (now_ms - this.#renewed_ms > this.#lease_s * 1000 - this.renew_ms) {
      log.warn({ webhooks: this.#drains.size }, 'webhooks: leases ran out; what was not sent is let go');
      for (const drain of this.#drains.values()) drain.end('stopped');
    }
    renewLeases(db, this.#owner, [...this.#drains.keys()], this.#lease_s).then(
      () => {
        this.#renewed_ms = now_ms;
      },
      (error: unknown) => log.warn({ err: error }, 'webhooks: leases were not renewed'),
    );
  }

  stop(): void {
    this.#stopping = true;
    for (const drain of this.#drains.values()) drain.end('stopped');
    setTimeout(() => this.#give_up.abort(), GRACE_MS).unref();
  }

  async ended(): Promise<void> {
    await Promise.allSettled(this.#under_way);
  }

  /** A job: over when the webhook has nothing due any more, its turn is over, or it has turned out to be slow. */
  async send(lane: Lane, webhook_id: WebhookId): Promise<void> {
    const live = this.#drains.get(webhook_id);
    if (live) return live.wake();
    const { db, outbound, secrets, hub, log } = this.#parts;
    const parts: DrainParts = {
      ...{ db, outbound, secrets, give_up: this.#give_up.signal },
      ...{ window: this.#window, unproven: this.#unproven },
    };
    const drain = new Drain(webhook_id, lane, parts);
    this.#drains.set(webhook_id, drain);
    const undo = [
      hub.subscribe('webhook', webhook_id, () => drain.wake()),
      hub.subscribe('webhook', changeOf(webhook_id), () => drain.look()),
    ];
    if (this.#stopping) drain.end('stopped');
    const whole = this.#drain(drain, lane).finally(() => {
      for (const each of undo) each();
      this.#forget(drain);
      this.#under_way.delete(whole);
    });
    this.#under_way.add(whole);
    whole.catch((error: unknown) => log.warn({ err: error, webhook_id }, 'webhooks: sending broke off'));
    await Promise.race([whole, drain.handedOver]);
  }

  async #drain(drain: Drain, lane: Lane): Promise<void> {
    const { db } = this.#parts;
    const id = drain.webhook_id;
    if (!(await this.#take(drain))) return;
    try {
      do await drain.pump();
      while (drain.ended === null && !(await this.#give(drain)));
    } catch (error) {
      await giveLease(db, id, this.#owner, true).catch(() => undefined);
      throw error;
    }
    if (drain.ended !== null) await giveLease(db, id, this.#owner, true);
    this.#forget(drain);
    await this.#schedule(drain, lane);
  }

  /** Whoever wakes it while the lease is refused has news that the lease's holder may not have heard. */
  async #take(drain: Drain): Promise<boolean> {
    for (;;) {
      drain.heard();
      if (await takeLease(this.#parts.db, drain.webhook_id, this.#owner, this.#lease_s)) return true;
      if (!drain.woken) return false;
    }
  }

  /** False when there is more to do. */
  async #give(drain: Drain): Promise<boolean> {
    if (!(await giveLease(this.#parts.db, drain.webhook_id, this.#owner, false))) {
      drain.wake();
      return false;
    }
    return !drain.woken || !(await this.#take(drain));
  }

  #forget(drain: Drain): void {
    if (this.#drains.get(drain.webhook_id) === drain) this.#drains.delete(drain.webhook_id);
  }

  async #schedule(drain: Drain, lane: Lane): Promise<void> {
    const { db } = this.#parts;
    // Woken, it may be enabled again: the job that said so has found this one at work.
    if (drain.ended === 'disabled' && !drain.woken) return failLeftBehind(db, drain.webhook_id);
    const { count, slowest_ms } = drain.sent;
    const slow = drain.lane === SLOW && (count === 0 || slowest_ms > SLOW_MS);
    if (slow !== (lane === SLOW)) await setLane(db, drain.webhook_id, slow);
    const next = await nextDue(db, drain.webhook_id);
    if (!next) return;
    // Woken between its last look and the end: the job that woke it is gone, and this one takes its place at once.
    const found_nothing = next.is_now && drain.ended === null && count === 0 && !drain.woken;
    const not_before_ms = drain.ended === 'unproven' ? Date.now() + drain.url.heldMs() : 0;
    const at_ms = Math.max(next.at.getTime() + (found_nothing ? NOTHING_FOUND_MS : 0), not_before_ms);
    const run_at = new Date(at_ms);
    await addJobs(db, [sendJob(drain.webhook_id, slow, run_at)], true);
  }
}
