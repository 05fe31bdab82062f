/**
 * Runs the senders of one process: decides which webhooks have a sender now, and renews the senders' leases.
 *
 * - A webhook has at most one sender, which holds the webhook's lease.
 * - Slow receivers have slots of their own, so they hold up only each other.
 * - A process that cannot renew its leases stops sending before they expire.
 *
 *   wake, or due at a poll ─▶ ready (fast or slow, first come first served) ─▶ active ─▶ (ready, if it leaves more)
 */
import { randomUUID } from 'node:crypto';
import { once } from 'node:events';
import type { WebhookId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { pause } from '../../shared/retry.ts';
import type { Sealer } from '../../shared/seal.ts';
import type { NotifyHub } from '../db/notify.ts';
import type { Db } from '../db/pool.ts';
import { SharedLimit } from '../db/shared-limit.ts';
import { onDue } from './fan-out.ts';
import type { Outbound } from './outbound.ts';
import { Sender, type SenderParts } from './sender.ts';
import { listDueWebhooks, renewLeases } from './store.ts';

export interface SendersParts {
  readonly db: Db;
  readonly hub: NotifyHub;
  readonly log: Log;
  readonly outbound: Outbound;
  readonly secrets: Sealer;
  /** After so long another process takes over from one that died. Default: 15 s. */
  readonly lease_s?: number;
  /** How often the database is asked what is due: retries, and what other processes made due or left. Default: 2 s. */
  readonly poll_ms?: number;
}

const LEASE_S = 15;
const RENEWALS_PER_LEASE = 4;
const POLL_MS = 2_000;
/** Webhooks that are sent to at a time. */
const SLOTS = { fast: 256, slow: 64 } as const;
type Pace = keyof typeof SLOTS;
/** Requests of an organisation to URLs that have never answered 2xx. */
export const UNPROVEN_REQUESTS = 100;
const UNPROVEN_WINDOW_S = 600;
/** When the process stops, requests in flight get this long. Then another process sends them again. */
const GRACE_MS = 5_000;

/** Sends until `signal` aborts. Resolves when the outcome of every request is recorded, or the request was given up. */
export async function runSenders(parts: SendersParts, signal: AbortSignal): Promise<void> {
  const senders = new Senders(parts);
  const unsubscribe = onDue((ids) => senders.wake(ids));
  const renewing = setInterval(() => senders.renew(), senders.renew_ms);
  const poll = async () => {
    while (!signal.aborted) {
      await senders.poll();
      await pause(parts.poll_ms ?? POLL_MS, signal);
    }
  };
  const stop = async () => {
    if (!signal.aborted) await once(signal, 'abort');
    unsubscribe();
    await senders.stop();
  };
  await Promise.all([poll(), stop()]);
  clearInterval(renewing);
}

interface Active {
  readonly sender: Sender;
  pace: Pace;
  readonly ended: Promise<void>;
}

class Senders {
  readonly #parts: SendersParts;
  readonly #sender_parts: SenderParts;
  readonly #give_up = new AbortController();
  readonly #ready = { fast: new Set<WebhookId>(), slow: new Set<WebhookId>() };
  readonly #active = new Map<WebhookId, Active>();
  /** Those whose last sender found them slow. */
  readonly #slow = new Set<WebhookId>();
  readonly #lease_s: number;
  readonly renew_ms: number;
  /** The last time that the leases were renewed, or none was held. */
  #renewed_ms = performance.now();
  #stopping = false;

  constructor(parts: SendersParts) {
    const { db, outbound, secrets } = parts;
    this.#parts = parts;
    this.#lease_s = parts.lease_s ?? LEASE_S;
    this.renew_ms = (this.#lease_s * 1000) / RENEWALS_PER_LEASE;
    this.#sender_parts = {
      db,
      outbound,
      secrets,
      owner: randomUUID(),
      lease_s: this.#lease_s,
      give_up: this.#give_up.signal,
      unproven: new SharedLimit(db, {
        ...{ name: 'unproven', most: UNPROVEN_REQUESTS, window_s: UNPROVEN_WINDOW_S },
      }),
    };
  }

  wake(ids: Iterable<WebhookId>): void {
    if (this.#stopping) return;
    for (const id of ids) {
      const active = this.#active.get(id);
      if (active) active.sender.wake();
      else this.#ready[this.#slow.has(id) ? 'slow' : 'fast'].add(id);
    }
    this.#startReady('fast');
    this.#startReady('slow');
  }

  /** Wakes the senders of this process, and due webhooks that no process sends to. */
  async poll(): Promise<void> {
    const { db, log } = this.#parts;
    for (const { sender } of this.#active.values()) sender.wake();
    try {
      const { unproven } = this.#sender_parts;
      const due = await listDueWebhooks(db);
      const may_send = due.filter(({ org_id, proven }) => proven || !unproven.isUsedUp(org_id));
      this.wake(may_send.map(({ id }) => id).filter((id) => !this.#active.has(id)));
    } catch (error) {
      log.warn({ err: error }, 'webhooks: due deliveries were not looked for');
    }
  }

  /** To be called every {@link renew_ms}. */
  renew(): void {
    const { db, log } = this.#parts;
    const now_ms = performance.now();
    if (this.#active.size === 0) {
      this.#renewed_ms = now_ms;
      return;
    }
    // At the next renewal another process may have taken them over.
    if (now_ms - this.#renewed_ms > this.#lease_s * 1000 - this.renew_ms) {
      log.warn({ webhooks: this.#active.size }, 'webhooks: leases were not renewed in time; sending stops');
      for (const { sender } of this.#active.values()) sender.end('stopped');
    }
    renewLeases(db, this.#sender_parts.owner, [...this.#active.keys()], this.#lease_s).then(
      () => {
        this.#renewed_ms = now_ms;
      },
      (error: unknown) => log.warn({ err: error }, 'webhooks: leases were not renewed'),
    );
  }

  async stop(): Promise<void> {
    this.#stopping = true;
    this.#ready.fast.clear();
    this.#ready.slow.clear();
    const active = [...this.#active.values()];
    for (const { sender } of active) sender.end('stopped');
    const grace = setTimeout(() => this.#give_up.abort(), GRACE_MS);
    await Promise.all(active.map(({ ended }) => ended));
    clearTimeout(grace);
  }

  #startReady(pace: Pace): void {
    let free = SLOTS[pace] - [...this.#active.values()].filter((each) => each.pace === pace).length;
    for (const id of this.#ready[pace]) {
      if (free-- <= 0) return;
      this.#ready[pace].delete(id);
      this.#start(id, pace);
    }
  }

  #start(id: WebhookId, pace: Pace): void {
    const { hub, log } = this.#parts;
    const sender = new Sender(id, pace === 'slow', this.#sender_parts, () => {
      if (active.pace === 'slow') return;
      log.debug({ webhook_id: id }, 'webhooks: the receiver is slow');
      active.pace = 'slow';
      this.#startReady('fast');
    });
    const unsubscribe = hub.subscribe('webhook', id, () => sender.reload());
    const ended = sender
      .run()
      .catch((error: unknown) => log.warn({ err: error, webhook_id: id }, 'webhooks: sending broke off'))
      .then(() => {
        unsubscribe();
        this.#finish(sender);
      });
    const active: Active = { sender, pace, ended };
    this.#active.set(id, active);
  }

  #finish(sender: Sender): void {
    const id = sender.webhook_id;
    this.#active.delete(id);
    if (sender.isSlow) this.#slow.add(id);
    else if (this.#slow.delete(id)) {
      this.#parts.log.debug({ webhook_id: id }, 'webhooks: the receiver is fast again');
    }
    this.wake(sender.leavesMore ? [id] : []);
  }
}
