/**
 * Limits requests to unproven URLs, those that have never answered 2xx: their hosts may not have agreed to any. All
 * webhooks of an organisation share 100 such requests in ten minutes; beyond these, each webhook may send one in that
 * time, so that a new receiver can prove itself beside others that do not. Each process counts its own requests.
 */
import type { OrgId, WebhookId } from '../lib/ids.ts';
import type { Outcome } from './outcome.ts';

export const UNPROVEN_REQUESTS = 100;
export const UNPROVEN_WINDOW_MS = 600_000;
/** With so many organisations, expired windows are removed before one is added. */
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

  /** Counts a request. False: it exceeds the limit and must not be sent. */
  take(org_id: OrgId, webhook_id: WebhookId): boolean {
    if (this.isExhausted(org_id, webhook_id)) return false;
    const window = this.#live(org_id) ?? this.#begin(org_id);
    window.webhooks.add(webhook_id);
    window.left -= 1;
    return true;
  }

  /** Whether {@link take} would refuse. */
  isExhausted(org_id: OrgId, webhook_id: WebhookId): boolean {
    const window = this.#live(org_id);
    return window !== undefined && window.left <= 0 && window.webhooks.has(webhook_id);
  }

  #live(org_id: OrgId): Window | undefined {
    const window = this.#windows.get(org_id);
    return window && window.ends_ms > this.#now_ms() ? window : undefined;
  }

  #begin(org_id: OrgId): Window {
    const now_ms = this.#now_ms();
    if (this.#windows.size >= SWEPT_AT) {
      for (const [id, { ends_ms }] of this.#windows) if (ends_ms <= now_ms) this.#windows.delete(id);
    }
    const window: Window = {
      ends_ms: now_ms + UNPROVEN_WINDOW_MS,
      left: UNPROVEN_REQUESTS,
      webhooks: new Set(),
    };
    this.#windows.set(org_id, window);
    return window;
  }
}

/** Whether the present URL of a webhook is proven, for its sender. */
export class UrlProof {
  readonly #webhook_id: WebhookId;
  readonly #requests: UnprovenRequests;
  #org_id: OrgId | null = null;
  #url: string | undefined;
  #recorded = false;
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

  /** Counts the request if the URL is unproven. */
  mayRequest(): boolean {
    if (this.#recorded || this.#answered === this.#url || this.#org_id === null) return true;
    return this.#requests.take(this.#org_id, this.#webhook_id);
  }
}

type Answered = Pick<Outcome, 'state' | 'address'>;
