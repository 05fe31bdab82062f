/**
 * Limits requests to unproven URLs, those that have never answered 2xx: their hosts may not have agreed to any. All
 * webhooks of an organisation share 100 such requests in ten minutes; beyond these, each webhook may send one in that
 * time, so that a new receiver can prove itself beside others that do not; of these, too, there are at most 100.
 */
import type { OrgId, WebhookId } from '../../shared/ids.ts';
import type { Db } from '../db/pool.ts';
import { SharedLimit } from '../db/shared-limit.ts';
import type { Outcome } from './record-outcomes.ts';

export const UNPROVEN_REQUESTS = 100;
const WINDOW_S = 600;

export class UnprovenRequests {
  readonly #of_all: SharedLimit;
  readonly #of_each: SharedLimit;
  /** Webhooks that are made and deleted in turn would have one each. */
  readonly #beyond: SharedLimit;

  constructor(db: Db) {
    const limit = (name: string, most: number) => new SharedLimit(db, { name, most, window_s: WINDOW_S });
    this.#of_all = limit('unproven', UNPROVEN_REQUESTS);
    this.#of_each = limit('unproven webhook', 1);
    this.#beyond = limit('unproven beyond', UNPROVEN_REQUESTS);
  }

  /** Counts a request. False: it exceeds the limit and must not be sent. */
  async take(org_id: OrgId, webhook_id: WebhookId): Promise<boolean> {
    const of_all = await this.#of_all.count(org_id);
    const of_each = await this.#of_each.count(webhook_id);
    if (!of_all.is_over) return true;
    return !of_each.is_over && !(await this.#beyond.count(org_id)).is_over;
  }

  /** As far as this process knows, {@link take} would refuse. */
  isExhausted(org_id: OrgId, webhook_id: WebhookId): boolean {
    if (!this.#of_all.isUsedUp(org_id)) return false;
    return this.#of_each.isUsedUp(webhook_id) || this.#beyond.isUsedUp(org_id);
  }
}

/** Whether the present URL of a webhook is proven, for its sender. */
export class UrlProof {
  readonly #webhook_id: WebhookId;
  readonly #requests: UnprovenRequests;
  #org_id: OrgId | null = null;
  #url: string | undefined;
  #recorded = false;
  #answers: Promise<unknown> = Promise.resolve();
  /** The URL of the last 2xx, which may not be recorded yet. */
  #answered: string | undefined;

  constructor(webhook_id: WebhookId, requests: UnprovenRequests) {
    this.#webhook_id = webhook_id;
    this.#requests = requests;
  }

  /** The webhook's row says so. */
  get recorded(): boolean {
    return this.#recorded;
  }

  /** Requests need no count. */
  get isProven(): boolean {
    return this.#recorded || this.#answered === this.#url;
  }

  /** Takes over the webhook's row, which may have another URL now. */
  read(row: { readonly org_id: OrgId | null; readonly url: string; readonly proven: boolean }): void {
    this.#org_id = row.org_id;
    this.#url = row.url;
    this.#recorded = row.proven;
  }

  noteAnswer({ state, address }: Answered): void {
    if (state === 'delivered') this.#answered = address;
  }

  noteRecorded(outcomes: readonly Answered[]): void {
    this.#recorded ||= outcomes.some(({ state, address }) => state === 'delivered' && address === this.#url);
  }

  /** Counts the request if the URL is unproven. Answers in the order of the calls, so that requests begin in order. */
  mayRequest(): Promise<boolean> {
    const take = async () =>
      this.isProven || this.#org_id === null || this.#requests.take(this.#org_id, this.#webhook_id);
    const answer = this.#answers.then(take);
    this.#answers = answer.catch(() => undefined);
    return answer;
  }
}

type Answered = Pick<Outcome, 'state' | 'address'>;
