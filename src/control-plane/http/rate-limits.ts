/**
 * Rate limits: requests a minute of a principal (a user or service account, with all its credentials together), and of an address
 * on the routes that take a password or a token; and changes an hour of a principal, which {@link ChangeCounts} counts. Headers
 * follow the IETF draft "RateLimit header fields for HTTP", revision 10.
 */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { AppError } from '../../shared/errors.ts';
import { firstGroups } from '../../shared/networks.ts';
import type { Db } from '../db/pool.ts';
import { SharedLimit } from '../db/shared-limit.ts';
import { actorOf, type Principal } from '../identity/principal.ts';

const WINDOW_S = 60;

/** Requests in a minute, and changes in an hour. */
export interface RequestLimits {
  readonly principal: number;
  readonly address: number;
  readonly changes: number;
}

/** Those whose counts the database keeps. */
type Counted = 'principal' | 'address';

export class RateLimits {
  readonly #limits: RequestLimits | null;
  readonly #counts: Readonly<Record<Counted, SharedLimit>> | null;

  /** Null: no limits. */
  constructor(limits: RequestLimits | null, db: Db) {
    const counts = (name: Counted, most: number) => new SharedLimit(db, { name, most, window_s: WINDOW_S });
    this.#limits = limits;
    this.#counts = limits && {
      principal: counts('principal', limits.principal),
      address: counts('address', limits.address),
    };
  }

  /** Without a reply: of an upgrade, whose answer says nothing of limits. @throws AppError RATE_LIMITED */
  async countPrincipal(principal: Principal, reply?: FastifyReply, requests = 1): Promise<void> {
    await this.#count('principal', actorOf(principal), reply, requests);
  }

  /** @throws AppError RATE_LIMITED */
  async countAddress(request: FastifyRequest, reply: FastifyReply): Promise<void> {
    await this.#count('address', addressGroup(request.ip), reply);
  }

  async #count(name: Counted, key: string, reply?: FastifyReply | undefined, requests = 1): Promise<void> {
    if (!this.#limits || !this.#counts) return;
    const { is_over, left, ends_in_ms } = await this.#counts[name].count(key, requests);
    const reset_s = Math.max(1, Math.ceil(ends_in_ms / 1000));
    reply?.header('ratelimit-policy', `"${name}";q=${this.#limits[name]};w=${WINDOW_S}`);
    reply?.header('ratelimit', `"${name}";r=${left};t=${reset_s}`);
    if (is_over) throw new AppError('RATE_LIMITED', { retry_after_seconds: reset_s });
  }
}

/** A network assigns one customer a whole /64 of IPv6 addresses. */
function addressGroup(ip: string): string {
  if (!ip.includes(':') || ip.includes('.')) return ip;
  return `${firstGroups(ip, 4)}::/64`;
}

const CHANGES_WINDOW_MS = 3_600_000;
/** With so many principals, those whose hour is over are forgotten before one is added. */
const SWEPT_AT = 10_000;

/**
 * How many changes a principal made in an hour. Each may leave rows that are kept for days (stored answers, events) or for good (audit
 * entries, names of HTTP ports), and no quota bounds those. Each control plane counts in its memory, so that a change costs no write:
 * with several of them there may be as many times more.
 */
export class ChangeCounts {
  readonly #now_ms: () => number;
  readonly #windows = new Map<string, { count: number; readonly ends_ms: number }>();

  constructor(now_ms: () => number = () => performance.now()) {
    this.#now_ms = now_ms;
  }

  /** @throws AppError RATE_LIMITED */
  require(principal: string, most: number): void {
    const window = this.#windows.get(principal);
    const left_ms = (window?.ends_ms ?? 0) - this.#now_ms();
    if (!window || left_ms <= 0 || window.count < most) return;
    throw new AppError('RATE_LIMITED', {
      message: `You have made ${most} changes in an hour. Wait. You can still delete and stop.`,
      retry_after_seconds: Math.ceil(left_ms / 1000),
    });
  }

  add(principal: string): void {
    const now_ms = this.#now_ms();
    const window = this.#windows.get(principal);
    if (window && window.ends_ms > now_ms) {
      window.count += 1;
      return;
    }
    if (this.#windows.size >= SWEPT_AT)
      for (const [each, { ends_ms }] of this.#windows) if (ends_ms <= now_ms) this.#windows.delete(each);
    this.#windows.set(principal, { count: 1, ends_ms: now_ms + CHANGES_WINDOW_MS });
  }
}
