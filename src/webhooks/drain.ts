/**
 * Sends one webhook's deliveries, until none is due. Of them it holds so many as its process has room for, so that the
 * next are there before the last are sent; their outcomes are written many at a time.
 * Invariants: of one instance, what is sent in order has one request under way at a time, in the order of positions;
 * what tries again has places of its own and holds nothing up; an outcome is written before its delivery is let go;
 * what was not sent yet is let go at any time without a trace.
 *
 *   read → held ─┬─ in order, of an instance: behind the one before ─┐
 *                ├─ in order, of none ───────────────────────────────┼─ sent → outcome → written → let go
 *                └─ again ───────────────────────────────────────────┘
 */
import { type Db, isUnavailable, sqlStateOf } from '../db/pool.ts';
import { backoffMs, pause } from '../lib/backoff.ts';
import type { WebhookDeliveryId, WebhookId } from '../lib/ids.ts';
import type { Sealer } from '../lib/seal.ts';
import { type DueDelivery, type Fresh, findReceiver, listDue, listFresh } from './drain-store.ts';
import { clearBatches } from './fresh-store.ts';
import { FAST, type Lane, SLOW, SLOW_MS } from './lanes.ts';
import { messageBody, messageHeaders } from './message.ts';
import type { Outbound } from './outbound/outbound.ts';
import { GONE, outcomeOf } from './outcome.ts';
import type { Outcome } from './outcome-store.ts';
import { record } from './record.ts';
import { type Target, targetOf } from './target.ts';
import { type UnprovenRequests, UrlProof } from './unproven.ts';

export interface DrainParts {
  readonly db: Db;
  readonly outbound: Outbound;
  /** Opens the webhooks' secrets. */
  readonly secrets: Sealer;
  /** Requests under way are given up, and count for nothing. */
  readonly give_up: AbortSignal;
  /** How many deliveries may be held now, beside those that are tried again. */
  readonly window: () => number;
  readonly unproven: UnprovenRequests;
}

/** Why it ends while there is more: its turn is over, the process stops, 410, it is not enabled, `UrlProof` holds it back. */
export type End = 'turn' | 'stopped' | 'gone' | 'disabled' | 'unproven';

/** Held of what is tried again, at most: however much of it is due, what is new is read. */
const AGAIN_WINDOW = 32;
const DEADLOCK = '40P01';
const AWAY_MS = 500;
/** Outcomes are written when there are so many, when nothing is under way, or after so long. */
const BATCH = 128;
const LINGER_MS = 50;
/** How long it stays for more when it has sent all. */
const STAYS_MS = 50;

export class Drain {
  readonly webhook_id: WebhookId;
  readonly url: UrlProof;
  readonly #parts: DrainParts;
  #lane: Lane;
  /** Their positions. */
  readonly #held = {
    first: new Map<WebhookDeliveryId, number>(),
    again: new Map<WebhookDeliveryId, number>(),
  };
  readonly #ready: { first: DueDelivery[]; again: DueDelivery[] } = { first: [], again: [] };
  readonly #running = { first: 0, again: 0 };
  /** By instance: what waits behind the one that is ready or under way. */
  readonly #behind = new Map<string, DueDelivery[]>();
  readonly #handed_over = Promise.withResolvers<void>();
  #outcomes: Outcome[] = [];
  /** The oldest outcome has waited long enough. */
  #overdue = false;
  #linger: NodeJS.Timeout | undefined;
  #target: Target | undefined;
  /** In a backlog of rows, the last position that was read in order: the next look goes on from there. */
  #after = 0;
  /** What is fresh was read up to here. */
  #read_to = 0;
  /** And the batches up to here were cleared away, as far as they could be. */
  #cleared_to = 0;
  #failing = false;
  #more = false;
  /** More is to be tried again than was read. */
  #more_again = false;
  /** The webhook has changed since it was read. */
  #outdated = false;
  #ended: End | null = null;
  #turn: NodeJS.Timeout | undefined;
  #fault: unknown;
  #poked = false;
  #poke: () => void = () => undefined;
  #sent = 0;
  /** How many when it last stayed for more. */
  #sent_before = 0;
  #slowest_ms = 0;

  constructor(webhook_id: WebhookId, lane: Lane, parts: DrainParts) {
    this.webhook_id = webhook_id;
    this.#lane = lane;
    this.#parts = parts;
    this.url = new UrlProof(webhook_id, parts.unproven);
  }

  get ended(): End | null {
    return this.#ended;
  }
  /** How many requests have ended, and how long the longest took. */
  get sent(): { readonly count: number; readonly slowest_ms: number } {
    return { count: this.#sent, slowest_ms: this.#slowest_ms };
  }
  /** There may be more than was read; stays so until {@link pump} has looked. */
  get woken(): boolean {
    return this.#more;
  }
  /** It was slow from the start, or turned out to be. */
  get lane(): Lane {
    return this.#lane;
  }
  /** Resolves when it turns out to be slow: it goes on, but not in a slot of the fast lane. */
  get handedOver(): Promise<void> {
    return this.#handed_over.promise;
  }

  /** What woke it so far will be seen. */
  heard(): void {
    this.#more = false;
  }

  wake(): void {
    this.#more = true;
    this.#changed();
  }

  /** The webhook is read again, however much is held: the rest goes where it says by now, or nowhere. */
  look(): void {
    this.#outdated = true;
    this.wake();
  }

  /** What was not sent is let go; what is under way is waited for. */
  end(why: End): void {
    if (this.#ended !== null) return;
    this.#ended = why;
    for (const row of [...this.#ready.first, ...this.#ready.again, ...[...this.#behind.values()].flat()]) {
      this.#letGo(row);
    }
    this.#ready.first = [];
    this.#ready.again = [];
    this.#behind.clear();
    this.#changed();
  }

  /** Reads, sends and writes until nothing is held and nothing is due, or it was ended. */
  async pump(): Promise<void> {
    this.#more = true;
    this.#beginTurn();
    try {
      for (;;) {
        const reads = this.#ended === null && (this.#outdated || this.#mayRead());
        const outcomes = this.#ripeOutcomes();
        if (reads || outcomes.length > 0) {
          await Promise.all([reads ? this.#read() : undefined, this.#write(outcomes)]);
        } else if (this.#held.first.size + this.#held.again.size === 0) {
          await this.#clear();
          if (!(await this.#expectsMore())) break;
        } else {
          await this.#nextChange();
        }
      }
      if (this.#fault !== undefined) throw this.#fault;
    } catch (error) {
      this.end('stopped');
      // The lease is given back after this: nothing of ours may be under way then.
      while (this.#running.first + this.#running.again > 0) await this.#nextChange();
      throw error;
    } finally {
      clearTimeout(this.#turn);
    }
  }

  /**
   * After what it has sent more comes soon, most often: as the rest of the same burst, handed out meanwhile. To give the
   * lease back and to take it again would make that wait for the disk twice.
   */
  async #expectsMore(): Promise<boolean> {
    if (this.#ended !== null || this.#sent === this.#sent_before) return false;
    this.#sent_before = this.#sent;
    let is_over = false;
    const stay = setTimeout(() => {
      is_over = true;
      this.#changed();
    }, STAYS_MS);
    while (!is_over && !this.#more && !this.#outdated && this.#ended === null) await this.#nextChange();
    clearTimeout(stay);
    return !is_over;
  }

  #mayRead(): boolean {
    const { first, again } = this.#held;
    return (
      (this.#more && first.size <= this.#parts.window() / 2) ||
      (this.#more_again && again.size <= AGAIN_WINDOW / 2)
    );
  }

  #letGo({ id }: { readonly id: WebhookDeliveryId }): void {
    if (!this.#held.first.delete(id)) this.#held.again.delete(id);
  }

  #beginTurn(): void {
    clearTimeout(this.#turn);
    this.#turn = setTimeout(() => this.end('turn'), this.#lane.turn_ms);
  }

  #ripeOutcomes(): readonly Outcome[] {
    if (!this.#isRipe() && !this.#overdue) return [];
    this.#overdue = false;
    clearTimeout(this.#linger);
    const outcomes = this.#outcomes;
    this.#outcomes = [];
    return outcomes;
  }

  #isRipe(): boolean {
    return this.#running.first + this.#running.again === 0 || this.#outcomes.length >= BATCH;
  }

  #keep(outcome: Outcome): void {
    this.url.noteAnswer(outcome);
    if (this.#outcomes.push(outcome) > 1) return;
    this.#linger = setTimeout(() => {
      this.#overdue = true;
      this.#changed();
    }, LINGER_MS);
  }

  #changed(): void {
    this.#poked = true;
    this.#poke();
  }

  async #nextChange(): Promise<void> {
    if (!this.#poked) {
      await new Promise<void>((resolve) => {
        this.#poke = resolve;
      });
    }
    this.#poked = false;
  }

  /** A database that is away is asked again later: what is under way goes on meanwhile. */
  async #read(): Promise<void> {
    try {
      await this.#readDue();
    } catch (error) {
      if (!isUnavailable(error)) throw error;
      this.#more = true;
      this.#outdated = true;
      await pause(AWAY_MS, this.#parts.give_up);
    }
  }

  async #readDue(): Promise<void> {
    this.#more = false;
    this.#outdated = false;
    const { db, window } = this.#parts;
    const first = Math.max(1, window() - this.#held.first.size);
    const again = AGAIN_WINDOW - this.#held.again.size;
    // First: what gets rows in between, as by a replay, is seen twice. Else it would not be, but what came after it.
    const fresh = await listFresh(db, this.webhook_id, this.#read_to, first);
    const held = [...this.#held.first.values(), ...this.#held.again.values()];
    const [receiver, due] = await Promise.all([
      findReceiver(db, this.webhook_id),
      listDue(db, this.webhook_id, { held, after: this.#after, first, again }),
    ]);
    if (!receiver || receiver.org_id === null || receiver.status !== 'enabled') return this.end('disabled');
    this.#failing ||= receiver.failing;
    this.url.read(receiver);
    this.#target = targetOf(receiver, this.#parts.secrets);
    if (this.#ended !== null) return;
    const in_order = due.filter((row) => row.in_order);
    const last = in_order.at(-1);
    const after = this.#after;
    this.#after = last !== undefined && in_order.length === first ? last.position : 0;
    // A look from the middle on has not seen what a replay has put before it.
    if (after !== 0 || this.#after !== 0) this.#more = true;
    this.#more_again = due.length - in_order.length === again;
    for (const row of due) this.#admit(row);
    // What has rows was there before, or is asked for again from the start.
    if (in_order.length < first) this.#admitFresh(fresh);
    this.#advance();
  }

  #admitFresh({ due, read_to, more }: Fresh): void {
    for (const row of due) this.#admit(row);
    this.#read_to = read_to ?? this.#read_to;
    if (more) this.#more = true;
  }

  /** Batches that are done with. What can't be cleared now is looked at by the next drain. */
  async #clear(): Promise<void> {
    if (this.#cleared_to === this.#read_to) return;
    this.#cleared_to = this.#read_to;
    await clearBatches(this.#parts.db, this.webhook_id, this.#cleared_to).catch((error: unknown) => {
      if (!isUnavailable(error)) throw error;
    });
  }

  #admit(row: DueDelivery): void {
    if (this.#held.first.has(row.id) || this.#held.again.has(row.id)) return;
    this.#held[row.in_order ? 'first' : 'again'].set(row.id, row.position);
    if (!row.in_order) {
      this.#ready.again.push(row);
      return;
    }
    const behind = row.instance_id === null ? undefined : this.#behind.get(row.instance_id);
    if (behind) behind.push(row);
    else {
      if (row.instance_id !== null) this.#behind.set(row.instance_id, []);
      this.#ready.first.push(row);
    }
  }

  #advance(): void {
    const { parallel } = this.#lane;
    for (const kind of ['first', 'again'] as const) {
      while (this.#running[kind] < parallel[kind]) {
        if (this.#ready[kind].length > 0 && !this.url.mayRequest()) this.end('unproven');
        const row = this.#ready[kind].shift();
        if (row === undefined) break;
        this.#running[kind] += 1;
        this.#send(row).then(
          () => this.#settled(kind, row),
          (error: unknown) => {
            this.#fault ??= error;
            this.#letGo(row);
            this.#settled(kind, row);
            this.end('stopped');
          },
        );
      }
    }
  }

  async #send(row: DueDelivery): Promise<void> {
    const { outbound, give_up } = this.#parts;
    const { address, url, keys } = this.#target ?? { address: '', url: '', keys: [] };
    const at = new Date();
    const body = messageBody(row);
    const headers = messageHeaders(keys, row.event_id, body, at.getTime());
    const slow = setTimeout(() => this.#turnSlow(), SLOW_MS);
    // Nothing that a receiver does makes it throw.
    const answer = await outbound.post(url, headers, body, give_up);
    clearTimeout(slow);
    if (answer.status === null && give_up.aborted) {
      this.#letGo(row);
      return;
    }
    this.#sent += 1;
    this.#slowest_ms = Math.max(this.#slowest_ms, answer.latency_ms);
    // Its outcome disables the webhook, if that still has this address.
    if (answer.status === GONE && address === this.#target?.address) this.end('gone');
    this.#keep(outcomeOf(row, address, answer, at));
  }

  /** Nothing else waits for the answer that is late: what is sent beside it goes on in the slow lane's numbers. */
  #turnSlow(): void {
    if (this.#lane !== FAST) return;
    this.#lane = SLOW;
    this.#beginTurn();
    this.#handed_over.resolve();
  }

  #settled(kind: 'first' | 'again', row: DueDelivery): void {
    this.#running[kind] -= 1;
    if (row.in_order && row.instance_id !== null) {
      const next = this.#behind.get(row.instance_id)?.shift();
      if (next) this.#ready.first.push(next);
      else this.#behind.delete(row.instance_id);
    }
    this.#advance();
    if (this.#isRipe()) this.#changed();
  }

  /** For as long as the database is away: what was sent once need not be sent twice. */
  async #write(outcomes: readonly Outcome[]): Promise<void> {
    if (outcomes.length === 0) return;
    for (let attempt = 0; ; attempt++) {
      try {
        const so_far = { failing: this.#failing, proven: this.url.proven };
        this.#failing = await record(this.#parts.db, this.webhook_id, outcomes, so_far);
        break;
      } catch (error) {
        const passes = isUnavailable(error) || sqlStateOf(error) === DEADLOCK;
        if (!passes || this.#parts.give_up.aborted) throw error;
        await pause(backoffMs(attempt, 50, 1_000), this.#parts.give_up);
      }
    }
    this.url.noteRecorded(outcomes);
    for (const { delivery } of outcomes) this.#letGo(delivery);
  }
}
