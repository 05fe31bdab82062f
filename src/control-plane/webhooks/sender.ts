/**
 * Sends the deliveries of one webhook, under its lease. Requests run beside the state machine, which claims pages of due
 * deliveries, records outcomes, and releases the lease.
 * Invariants: the outcome of a request is recorded before its claim ends; an unsent delivery stays pending.
 *
 *   starting ─lease taken─▶ fetching ─▶ sending ─nothing claimed─▶ waiting ─50 ms─▶ released
 *      │                       ▲           │ ▲                       │
 *      │                       └─ room ────┘ └── woken: fetching ────┘
 *      └─ lease held elsewhere ─▶ released
 *   any state ─end()─▶ draining ─every request in flight is answered and recorded─▶ released
 */
import type { WebhookId } from '../../shared/ids.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import type { Sealer } from '../../shared/seal.ts';
import { type Db, isUnavailable } from '../db/pool.ts';
import { DeliveryQueue, type Parallel } from './delivery-queue.ts';
import { messageBody, messageHeaders, type Target, targetOf } from './message.ts';
import type { Outbound } from './outbound/outbound.ts';
import { GONE, type Outcome, outcomeOf, record } from './record-outcomes.ts';
import { type DueDelivery, findReceiver, listDue, releaseLease, takeLease } from './sender-store.ts';
import { failLeftBehind } from './store.ts';
import { type UnprovenRequests, UrlProof } from './unproven.ts';

export interface SenderParts {
  readonly db: Db;
  readonly outbound: Outbound;
  /** Opens the webhooks' secrets. */
  readonly secrets: Sealer;
  /** The process, in leases. */
  readonly owner: string;
  readonly lease_s: number;
  /** Aborts the requests in flight, without outcomes. */
  readonly give_up: AbortSignal;
  /** How many deliveries in order may be claimed now. */
  readonly window: () => number;
  readonly unproven: UnprovenRequests;
}

export type SenderState = 'starting' | 'fetching' | 'sending' | 'waiting' | 'draining' | 'released';
/** Why it drains. `unproven`: the limit for URLs that have never answered 2xx is reached. */
export type Ending = 'turn' | 'stopped' | 'gone' | 'disabled' | 'unproven';

/** A receiver with a request that takes longer is slow: it gets fewer requests at a time. */
export const SLOW_MS = 2_000;
export const PARALLEL: { readonly fast: Parallel; readonly slow: Parallel } = {
  fast: { in_order: 16, retries: 4 },
  slow: { in_order: 4, retries: 2 },
};
/** After its turn a sender gives way to others. */
const TURN_MS = { fast: 10_000, slow: 20_000 };
const RETRIES_CLAIMED = 32;
/** Before it releases its lease: the rest of a burst comes in this time. */
const WAIT_MS = 50;
const DATABASE_AWAY_MS = 500;

export class Sender {
  readonly webhook_id: WebhookId;
  readonly #parts: SenderParts;
  readonly #queue = new DeliveryQueue<DueDelivery>();
  readonly #proof: UrlProof;
  /** Called once, when the receiver turns out to be slow. */
  readonly #onSlow: () => void;
  #state: SenderState = 'starting';
  #ended: Ending | null = null;
  #is_slow: boolean;
  #turn: NodeJS.Timeout | undefined;
  #target: Target | undefined;
  #failing = false;
  #outcomes: Outcome[] = [];
  /** Deliveries in order were read up to this position. */
  #after = 0;
  /** There may be deliveries beyond it, and retries that were not read. */
  #more = { in_order: true, retries: false };
  /** The webhook's row or the order of its deliveries has changed. */
  #outdated = false;
  #woken = false;
  #sent = 0;
  #slowest_ms = 0;
  #fault: unknown;
  #signal = Promise.withResolvers<void>();

  constructor(webhook_id: WebhookId, is_slow: boolean, parts: SenderParts, onSlow: () => void) {
    this.webhook_id = webhook_id;
    this.#is_slow = is_slow;
    this.#parts = parts;
    this.#onSlow = onSlow;
    this.#proof = new UrlProof(webhook_id, parts.unproven);
  }

  get state(): SenderState {
    return this.#state;
  }
  /** There may be due deliveries that this sender has not read. */
  get leavesMore(): boolean {
    return this.#woken || this.#outdated || this.#ended === 'turn';
  }
  /** A slow receiver that has answered all requests in time is fast again. */
  get isSlow(): boolean {
    return this.#is_slow && (this.#sent === 0 || this.#slowest_ms > SLOW_MS);
  }

  /** There may be new deliveries. */
  wake(): void {
    this.#woken = true;
    this.#changed();
  }

  /** Reads the webhook's row anew, and its deliveries from the first. */
  reload(): void {
    this.#outdated = true;
    this.#changed();
  }

  /** Ends the claims of unsent deliveries. The sender drains: it waits for the requests in flight. */
  end(why: Ending): void {
    if (this.#ended !== null) return;
    this.#ended = why;
    this.#queue.releaseUnsent();
    this.#changed();
  }

  /** Resolves when the lease is released, or held elsewhere. @throws errors of the database, after releasing the lease */
  async run(): Promise<void> {
    const { db, owner, lease_s } = this.#parts;
    try {
      if (!(await takeLease(db, this.webhook_id, owner, lease_s))) return;
      this.#beginTurn();
      while (!(await this.#step()));
      if (this.#ended === 'disabled') await failLeftBehind(db, this.webhook_id);
      if (this.#fault !== undefined) throw this.#fault;
    } catch (error) {
      this.end('stopped');
      while (this.#queue.in_flight > 0) await this.#nextChange();
      await releaseLease(db, this.webhook_id, owner, true).catch(() => undefined);
      throw error;
    } finally {
      clearTimeout(this.#turn);
      this.#state = 'released';
    }
  }

  /** One step of the state machine; true once the lease is released. */
  async #step(): Promise<boolean> {
    if (this.#outcomes.length > 0) {
      await this.#record();
    } else if (this.#ended === null && this.#mayFetch()) {
      this.#state = 'fetching';
      await this.#fetch();
    } else if (!this.#queue.isEmpty) {
      this.#state = this.#ended === null ? 'sending' : 'draining';
      await this.#nextChange();
    } else if (this.#ended === null && this.#state !== 'waiting') {
      this.#state = 'waiting';
      this.#signal = Promise.withResolvers();
      const timer = setTimeout(() => this.#changed(), WAIT_MS);
      await this.#nextChange();
      clearTimeout(timer);
    } else {
      return this.#release();
    }
    return false;
  }

  /** False when another process has woken it meanwhile. */
  async #release(): Promise<boolean> {
    const { db, owner } = this.#parts;
    const released = await releaseLease(db, this.webhook_id, owner, this.#ended !== null);
    if (!released) this.wake();
    return released;
  }

  #mayFetch(): boolean {
    const { in_order, retries } = this.#queue.claimed;
    if (this.#outdated) return true;
    if (this.#more.retries && retries <= RETRIES_CLAIMED / 2) return true;
    return (this.#woken || this.#more.in_order) && in_order <= this.#parts.window() / 2;
  }

  /** While the database is away the requests in flight go on. */
  async #fetch(): Promise<void> {
    if (this.#outdated) this.#after = 0;
    this.#outdated = false;
    this.#woken = false;
    try {
      await this.#fetchPage();
      this.#sendReady();
    } catch (error) {
      if (!isUnavailable(error)) throw error;
      this.#outdated = true;
      await pause(DATABASE_AWAY_MS, this.#parts.give_up);
    }
  }

  async #fetchPage(): Promise<void> {
    const { db, secrets, window } = this.#parts;
    const in_order = Math.max(1, window() - this.#queue.claimed.in_order);
    const page = { after: this.#after, in_order, retries: RETRIES_CLAIMED };
    const [receiver, due] = await Promise.all([
      findReceiver(db, this.webhook_id),
      listDue(db, this.webhook_id, page),
    ]);
    if (!receiver || receiver.org_id === null || receiver.status !== 'enabled') return this.end('disabled');
    this.#failing ||= receiver.failing;
    this.#proof.read(receiver);
    this.#target = targetOf(receiver, secrets);
    if (this.#ended !== null) return;
    const ordered = due.filter((each) => each.in_order);
    this.#after = ordered.at(-1)?.position ?? this.#after;
    this.#more = {
      in_order: ordered.length === page.in_order,
      retries: due.length - ordered.length === page.retries,
    };
    for (const each of due) this.#queue.add(each);
  }

  #sendReady(): void {
    const parallel = this.#is_slow ? PARALLEL.slow : PARALLEL.fast;
    while (this.#queue.canSend(parallel)) {
      const delivery = this.#queue.next(parallel);
      if (delivery) void this.#send(delivery);
    }
  }

  /** Never rejects. */
  async #send(delivery: DueDelivery): Promise<void> {
    const slow = setTimeout(() => this.#turnSlow(), SLOW_MS);
    try {
      await this.#post(delivery);
    } catch (error) {
      this.#fault ??= error;
      this.#queue.release(delivery.id);
      this.end('stopped');
    }
    clearTimeout(slow);
    this.#queue.answered(delivery);
    this.#sendReady();
    this.#changed();
  }

  async #post(delivery: DueDelivery): Promise<void> {
    const { outbound, give_up } = this.#parts;
    if (!this.#proof.isProven && !(await this.#proof.mayRequest())) {
      this.#queue.release(delivery.id);
      return this.end('unproven');
    }
    const { address, url, keys } = this.#target ?? { address: '', url: '', keys: [] };
    const at = new Date();
    const body = messageBody(delivery);
    const headers = messageHeaders(keys, delivery.event_id, body, at.getTime());
    const answer = await outbound.post(url, headers, body, give_up);
    if (answer.status === null && give_up.aborted) return this.#queue.release(delivery.id);
    this.#sent += 1;
    this.#slowest_ms = Math.max(this.#slowest_ms, answer.latency_ms);
    // Its outcome disables the webhook, if that still has this address.
    if (answer.status === GONE && address === this.#target?.address) this.end('gone');
    const outcome = outcomeOf(delivery, address, answer, at);
    this.#proof.noteAnswer(outcome);
    this.#outcomes.push(outcome);
  }

  /** Repeats the write while the database is away: without its outcome a delivery would be sent again. */
  async #record(): Promise<void> {
    const outcomes = this.#outcomes;
    this.#outcomes = [];
    const known = { failing: this.#failing, proven: this.#proof.recorded };
    for (let attempt = 0; ; attempt++) {
      try {
        this.#failing = await record(this.#parts.db, this.webhook_id, outcomes, known);
        break;
      } catch (error) {
        if (!isUnavailable(error) || this.#parts.give_up.aborted) throw error;
        await pause(backoffMs(attempt, 50, 1_000), this.#parts.give_up);
      }
    }
    this.#proof.noteRecorded(outcomes);
    for (const { id } of outcomes) this.#queue.release(id);
  }

  /** The sender goes on, with fewer requests at a time and without a fast slot. */
  #turnSlow(): void {
    if (this.#is_slow) return;
    this.#is_slow = true;
    this.#beginTurn();
    this.#onSlow();
  }

  #beginTurn(): void {
    clearTimeout(this.#turn);
    this.#turn = setTimeout(() => this.end('turn'), this.#is_slow ? TURN_MS.slow : TURN_MS.fast);
  }

  #changed(): void {
    this.#signal.resolve();
  }

  /** Resolves at the first change since the last one that was waited for. */
  async #nextChange(): Promise<void> {
    await this.#signal.promise;
    this.#signal = Promise.withResolvers();
  }
}
