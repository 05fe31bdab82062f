/**
 * Sends the deliveries of one webhook, while this process holds the webhook's lease. Requests run concurrently. One
 * loop does the rest: it reads pages of due deliveries, records outcomes, and releases the lease.
 *
 * - The outcome of a request is recorded before its claim ends.
 * - A delivery that was not sent stays pending.
 *
 *   starting ─ lease taken ─▶ sending ─ nothing is due ─────────────────────────────▶ released
 *      │                         └─ end() ─▶ draining ─ what is in flight is recorded ─▶ released
 *      └─ lease held elsewhere ─▶ released
 */
import type { OrgId, WebhookId } from '../../shared/ids.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import type { Sealer } from '../../shared/seal.ts';
import { type Db, isUnavailable, type Tx, transaction } from '../db/pool.ts';
import type { SharedLimit } from '../db/shared-limit.ts';
import { appendPrivate } from '../events/append.ts';
import {
  deliveryTarget,
  GONE,
  messageBody,
  messageHeaders,
  type Outcome,
  outcomeOf,
  type Target,
} from './attempt.ts';
import { disable } from './change-webhook.ts';
import { DeliveryQueue, type Parallel } from './delivery-queue.ts';
import { webhookView } from './model.ts';
import type { Outbound } from './outbound.ts';
import {
  type DueDelivery,
  failLeftBehind,
  findOwner,
  findReceiver,
  listDue,
  markFailingNotified,
  markProven,
  noteHealth,
  recordOutcomes,
  releaseLease,
  takeLease,
} from './store.ts';

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
  /** By organisation: requests to URLs that have never answered 2xx. Their hosts may not have agreed to any. */
  readonly unproven: SharedLimit;
}

export type SenderState = 'starting' | 'sending' | 'draining' | 'released';
/** Why it drains. `turn`: others wait. `unproven`: the limit for URLs that have never answered 2xx is reached. */
export type Ending = 'turn' | 'stopped' | 'gone' | 'disabled' | 'unproven';

/** A receiver with a request that takes longer is slow. */
const SLOW_RECEIVER_MS = 2_000;
/** Requests to one receiver at a time. */
export const PARALLEL: Parallel = { in_order: 16, retries: 4 };
/** Until the first 2xx: so a good receiver needs one of its organisation's requests to unproven URLs to prove itself. */
const UNPROVEN_PARALLEL: Parallel = { in_order: 1, retries: 1 };
/** Deliveries that a sender claims, at most. */
const CLAIMED = { in_order: 128, retries: 32 } as const;
/** After its turn a sender gives way to others. */
const TURN_MS = 15_000;
const DATABASE_AWAY_MS = 500;

export class Sender {
  readonly webhook_id: WebhookId;
  readonly #parts: SenderParts;
  readonly #queue = new DeliveryQueue<DueDelivery>();
  /** Called once, when the receiver turns out to be slow. */
  readonly #onSlow: () => void;
  #state: SenderState = 'starting';
  #ended: Ending | null = null;
  /** Until it has answered in time. */
  #was_slow: boolean;
  #is_slow = false;
  #org_id: OrgId | null = null;
  #target: Target = { address: '', url: '', keys: [] };
  /** The webhook's row says so. */
  #known = { failing: false, proven: false };
  /** The URL of the last 2xx, which may not be recorded yet. */
  #accepted: string | undefined;
  #outcomes: Outcome[] = [];
  /** Deliveries in order were read up to this position. */
  #after = 0;
  /** There may be deliveries that were not read. */
  #more = { in_order: true, retries: false };
  #woken = false;
  /** The webhook's row or the order of its deliveries has changed. */
  #outdated = false;
  #fault: unknown;
  #signal = Promise.withResolvers<void>();

  constructor(webhook_id: WebhookId, was_slow: boolean, parts: SenderParts, onSlow: () => void) {
    this.webhook_id = webhook_id;
    this.#was_slow = was_slow;
    this.#parts = parts;
    this.#onSlow = onSlow;
  }

  get state(): SenderState {
    return this.#state;
  }
  /** There may be due deliveries that this sender has not read. */
  get leavesMore(): boolean {
    return this.#woken || this.#outdated || this.#ended === 'turn';
  }
  get isSlow(): boolean {
    return this.#is_slow || this.#was_slow;
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
    if (this.#state === 'sending') this.#state = 'draining';
    this.#queue.releaseUnsent();
    this.#changed();
  }

  /** Resolves when the lease is released, or held elsewhere. @throws errors of the database, after releasing the lease */
  async run(): Promise<void> {
    const { db, owner, lease_s } = this.#parts;
    const turn = setTimeout(() => this.end('turn'), TURN_MS);
    try {
      // If it is held elsewhere, its holder finds the deliveries at its next look.
      if (!(await takeLease(db, this.webhook_id, owner, lease_s))) return;
      this.#state = this.#ended === null ? 'sending' : 'draining';
      await this.#sendAll();
      if (this.#ended === 'disabled') await failLeftBehind(db, this.webhook_id);
      await releaseLease(db, this.webhook_id, owner);
      if (this.#fault !== undefined) throw this.#fault;
    } catch (error) {
      this.end('stopped');
      while (this.#queue.in_flight > 0) await this.#nextChange();
      await releaseLease(db, this.webhook_id, owner).catch(() => undefined);
      throw error;
    } finally {
      clearTimeout(turn);
      this.#state = 'released';
    }
  }

  /**
   * The hard part is that requests end at any time, and any number of them. Therefore a request changes nothing but the queue and
   * the list of outcomes, and resolves a signal; this loop does the rest, one step at a time. Outcomes come first: what ended
   * during one write is recorded by the next, so batches grow with the load, and a delivery stays claimed until its outcome is in
   * the database, so that no page reads it again. Then a page is read, if there may be more and half of the claims are free.
   * Otherwise the loop waits. When nothing is claimed and nothing may be left, all is sent. A wake after that moment is not lost:
   * {@link leavesMore} makes the next sender.
   */
  async #sendAll(): Promise<void> {
    for (;;) {
      if (this.#outcomes.length > 0) await this.#record();
      else if (this.#state === 'sending' && this.#mayRead()) await this.#read();
      else if (!this.#queue.isEmpty) await this.#nextChange();
      else return;
    }
  }

  #mayRead(): boolean {
    const { in_order, retries } = this.#queue.claimed;
    if (this.#outdated) return true;
    if (this.#more.retries && retries <= CLAIMED.retries / 2) return true;
    return (this.#woken || this.#more.in_order) && in_order <= CLAIMED.in_order / 2;
  }

  /** While the database is away the requests in flight go on. */
  async #read(): Promise<void> {
    if (this.#outdated) this.#after = 0;
    this.#outdated = false;
    this.#woken = false;
    try {
      await this.#readPage();
      this.#sendReady();
    } catch (error) {
      if (!isUnavailable(error)) throw error;
      this.#outdated = true;
      await pause(DATABASE_AWAY_MS, this.#parts.give_up);
    }
  }

  async #readPage(): Promise<void> {
    const { db, secrets } = this.#parts;
    const in_order = Math.max(1, CLAIMED.in_order - this.#queue.claimed.in_order);
    const page = { after: this.#after, in_order, retries: CLAIMED.retries };
    const [receiver, due] = await Promise.all([
      findReceiver(db, this.webhook_id),
      listDue(db, this.webhook_id, page),
    ]);
    if (!receiver || receiver.org_id === null || receiver.status !== 'enabled') return this.end('disabled');
    const { org_id, failing, proven } = receiver;
    this.#org_id = org_id;
    this.#known = { failing: this.#known.failing || failing, proven };
    this.#target = deliveryTarget(receiver, secrets);
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
    const parallel = this.#isProven ? PARALLEL : UNPROVEN_PARALLEL;
    while (this.#queue.canSend(parallel)) {
      const delivery = this.#queue.next(parallel);
      if (delivery) void this.#send(delivery);
    }
  }

  /** Never rejects. */
  async #send(delivery: DueDelivery): Promise<void> {
    const slow = setTimeout(() => this.#turnSlow(), SLOW_RECEIVER_MS);
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
    if (!(await this.#mayRequest())) {
      this.#queue.release(delivery.id);
      return this.end('unproven');
    }
    const { address, url, keys } = this.#target;
    const at = new Date();
    const body = messageBody(delivery);
    const headers = messageHeaders(keys, delivery.event_id, body, at.getTime());
    const answer = await outbound.post(url, headers, body, give_up);
    if (answer.status === null && give_up.aborted) return this.#queue.release(delivery.id);
    if (answer.latency_ms <= SLOW_RECEIVER_MS) this.#was_slow = false;
    // Its outcome disables the webhook, if that still has this address.
    if (answer.status === GONE && address === this.#target.address) this.end('gone');
    const outcome = outcomeOf(delivery, address, answer, at);
    if (outcome.state === 'delivered') this.#accepted = address;
    this.#outcomes.push(outcome);
  }

  get #isProven(): boolean {
    return this.#known.proven || this.#accepted === this.#target.address;
  }

  /** Counts a request to an unproven URL. */
  async #mayRequest(): Promise<boolean> {
    if (this.#isProven || this.#org_id === null) return true;
    return !(await this.#parts.unproven.count(this.#org_id)).is_over;
  }

  /** Repeats the write while the database is away: without its outcome a delivery would be sent again. */
  async #record(): Promise<void> {
    const outcomes = this.#outcomes;
    this.#outcomes = [];
    for (let attempt = 0; ; attempt++) {
      try {
        this.#known.failing = await record(this.#parts.db, this.webhook_id, outcomes, this.#known);
        break;
      } catch (error) {
        if (!isUnavailable(error) || this.#parts.give_up.aborted) throw error;
        await pause(backoffMs(attempt, 50, 1_000), this.#parts.give_up);
      }
    }
    for (const { id, state, address } of outcomes) {
      this.#known.proven ||= state === 'delivered' && address === this.#target.address;
      this.#queue.release(id);
    }
  }

  #turnSlow(): void {
    if (this.#is_slow) return;
    this.#is_slow = true;
    this.#onSlow();
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

/** After this many failures of one delivery the webhook counts as failing. */
const TELLING_TRIES = 5;

/**
 * Records outcomes, and what follows from them for their webhook: it is proven, failing, or disabled.
 * @param known `failing`: the webhook's row may say that it fails; `proven`: the row says that its URL has answered 2xx
 * @returns whether the webhook fails now
 */
async function record(
  db: Db,
  webhook_id: WebhookId,
  outcomes: readonly Outcome[],
  known: { readonly failing: boolean; readonly proven: boolean },
): Promise<boolean> {
  const successes = outcomes.filter(({ state }) => state === 'delivered');
  const failures = outcomes.filter(({ state }) => state !== 'delivered');
  const accepted = successes.length > 0;
  await transaction(db, async (tx) => {
    await recordOutcomes(tx, outcomes);
    if (accepted && !known.proven) await markProven(tx, webhook_id, addressesOf(successes));
    if (failures.length > 0 || known.failing) await judge(tx, webhook_id, accepted, failures);
  });
  return !accepted;
}

async function judge(
  tx: Tx,
  webhook_id: WebhookId,
  accepted: boolean,
  failures: readonly Outcome[],
): Promise<void> {
  const health = await noteHealth(tx, webhook_id, accepted);
  const gone = failures.filter(({ status }) => status === GONE);
  if (gone.length > 0) return disable(tx, webhook_id, 'gone', 'system', addressesOf(gone));
  if (accepted || !health) return;
  if (health.hopeless) return disable(tx, webhook_id, 'failing', 'system');
  const persists = health.persists || failures.some(({ tries }) => tries >= TELLING_TRIES);
  if (persists && !health.failing_notified) await tellFailing(tx, webhook_id);
}

const addressesOf = (outcomes: readonly Outcome[]) => [...new Set(outcomes.map(({ address }) => address))];

async function tellFailing(tx: Tx, id: WebhookId): Promise<void> {
  const row = await markFailingNotified(tx, id);
  const org_id = await findOwner(tx, id);
  if (!row || !org_id) return;
  await appendPrivate(tx, {
    org_id,
    user_id: null,
    type: 'webhook.failing',
    data: { webhook: webhookView(row) },
    actor: 'system',
  });
}
