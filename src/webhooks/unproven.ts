/**
 * Requests to URLs that have never answered 2xx: their hosts may never have agreed to any. An organisation's webhooks
 * together send at most 100 of them in ten minutes, whatever is replayed, deleted or made anew; each webhook may send
 * one in that time, so that one that works proves itself beside others that do not. Counted by each process.
 */
import type { OrgId, WebhookId } from '../lib/ids.ts';
import type { Outcome } from './outcome-store.ts';

export const UNPROVEN_REQUESTS = 100;
export const UNPROVEN_WINDOW_MS = 600_000;
/** Organisations remembered before those whose time is over are forgotten. */
const SWEPT_AT = 1_000;

interface Window {
  readonly ends_ms: number;
  left: number;
  readonly webhooks: Set<WebhookId>;
}

export class UnprovenRequests {
  readonly #windows = new Map<OrgId, Window>();
  readonly #now_ms: () => number;

  constructor(now_ms: () => number = () => performance.now()) {
    this.#now_ms = now_ms;
  }

  /** Takes a place for one request. False: there is none until {@link waitMs} is over. */
  take(org_id: OrgId, webhook_id: WebhookId): boolean {
    const window = this.#windowOf(org_id);
    const is_first = !window.webhooks.has(webhook_id);
    if (!is_first && window.left <= 0) return false;
    window.webhooks.add(webhook_id);
    window.left -= 1;
    return true;
  }

  waitMs(org_id: OrgId): number {
    return Math.max(0, (this.#windows.get(org_id)?.ends_ms ?? 0) - this.#now_ms());
  }

  #windowOf(org_id: OrgId): Window {
    const now_ms = this.#now_ms();
    const present = this.#windows.get(org_id);
    if (present && present.ends_ms > now_ms) return present;
    if (this.#windows.size >= SWEPT_AT) this.#forgetEnded(now_ms);
    const next = {
      ends_ms: now_ms + UNPROVEN_WINDOW_MS,
      left: UNPROVEN_REQUESTS,
      webhooks: new Set<WebhookId>(),
    };
    this.#windows.set(org_id, next);
    return next;
  }

  #forgetEnded(now_ms: number): void {
    for (const [org_id, { ends_ms }] of this.#windows) if (ends_ms <= now_ms) this.#windows.delete(org_id);
  }
}

/** Whether a webhook's URL has proved itself, and whether it may be sent anything until then. */
export class UrlProof {
  readonly #webhook_id: WebhookId;
  readonly #requests: UnprovenRequests;
  #org_id: OrgId | null = null;
  #url: string | undefined;
  #proven = false;
  /** Has answered 2xx, which may not be written down yet. */
  #answered: string | undefined;

  constructor(webhook_id: WebhookId, requests: UnprovenRequests) {
    this.#webhook_id = webhook_id;
    this.#requests = requests;
  }

  /** It is written down. */
  get proven(): boolean {
    return this.#proven;
  }

  /** As the webhook's row says now: it may have another URL. */
  read({
    org_id,
    url,
    proven,
  }: {
    readonly org_id: OrgId | null;
    readonly url: string;
    readonly proven: boolean;
  }): void {
    this.#org_id = org_id;
    this.#url = url;
    this.#proven = proven;
  }

  noteAnswer({ state, address }: Answered): void {
    if (state === 'delivered') this.#answered = address;
  }

  noteRecorded(outcomes: readonly Answered[]): void {
    this.#proven ||= outcomes.some(({ state, address }) => state === 'delivered' && address === this.#url);
  }

  mayRequest(): boolean {
    if (this.#proven || this.#answered === this.#url || this.#org_id === null) return true;
    return this.#requests.take(this.#org_id, this.#webhook_id);
  }

  /** For how long nothing may be sent once {@link mayRequest} has said no. */
  heldMs(): number {
    return this.#proven || this.#org_id === null ? 0 : this.#requests.waitMs(this.#org_id);
  }
}

type Answered = Pick<Outcome, 'state' | 'address'>;
