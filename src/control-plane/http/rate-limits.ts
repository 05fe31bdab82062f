/**
 * Limits requests, and counts changes. Each control plane counts in its memory, so that a request costs no write.
 *
 * - `RateLimits`: requests in a minute of a principal (a user or service account, with all its credentials together),
 *   and of an address on the routes that take a password or a token. Each control plane grants its share of the limit.
 *   The headers follow the IETF draft "RateLimit header fields for HTTP", revision 10.
 * - `ChangeCounts`: changes in an hour of a principal. Each control plane grants the whole limit.
 */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { AppError } from '../../shared/errors.ts';
import { firstGroups } from '../../shared/networks.ts';
import { actorOf, type Principal } from '../identity/principal.ts';

const WINDOW_S = 60;

/** Requests in a minute, and changes in an hour. */
export interface RequestLimits {
  readonly principal: number;
  readonly address: number;
  readonly changes: number;
}

type Counted = 'principal' | 'address';

export class RateLimits {
  readonly #limits: RequestLimits | null;
  readonly #control_planes: () => number;
  readonly #counts: Readonly<Record<Counted, Windows>>;

  /** `limits`: null for none. `control_planes`: how many live, with this one. */
  constructor(limits: RequestLimits | null, control_planes: () => number, now_ms = () => performance.now()) {
    this.#limits = limits;
    this.#control_planes = control_planes;
    const minutes = () => new Windows(WINDOW_S * 1000, now_ms);
    this.#counts = { principal: minutes(), address: minutes() };
  }

  /** Without a reply: of an upgrade, whose answer says nothing of limits. @throws AppError RATE_LIMITED */
  countPrincipal(principal: Principal, reply?: FastifyReply, requests = 1): void {
    this.#count('principal', actorOf(principal), reply, requests);
  }

  /** @throws AppError RATE_LIMITED */
  countAddress(request: FastifyRequest, reply: FastifyReply): void {
    this.#count('address', addressGroup(request.ip), reply);
  }

  #count(name: Counted, key: string, reply?: FastifyReply | undefined, requests = 1): void {
    if (!this.#limits) return;
    const limit = this.#limits[name];
    const share = Math.ceil(limit / this.#control_planes());
    const { count, left_ms } = this.#counts[name].add(key, requests);
    const reset_s = Math.max(1, Math.ceil(left_ms / 1000));
    reply?.header('ratelimit-policy', `"${name}";q=${limit};w=${WINDOW_S}`);
    reply?.header('ratelimit', `"${name}";r=${Math.max(0, share - count)};t=${reset_s}`);
    if (count > share) throw new AppError('RATE_LIMITED', { retry_after_seconds: reset_s });
  }
}

/** With so many keys, those whose window is over are forgotten before one is added. */
const SWEPT_AT = 10_000;

/** Counts of keys in windows. A window begins with the first count of its key. */
class Windows {
  readonly #window_ms: number;
  readonly #now_ms: () => number;
  readonly #windows = new Map<string, { count: number; readonly ends_ms: number }>();

  constructor(window_ms: number, now_ms: () => number) {
    this.#window_ms = window_ms;
    this.#now_ms = now_ms;
  }

  find(key: string): { readonly count: number; readonly left_ms: number } {
    const { count, ends_ms } = this.#windows.get(key) ?? { count: 0, ends_ms: 0 };
    const left_ms = ends_ms - this.#now_ms();
    return left_ms > 0 ? { count, left_ms } : { count: 0, left_ms: 0 };
  }

  add(key: string, times: number): { readonly count: number; readonly left_ms: number } {
    const now_ms = this.#now_ms();
    let window = this.#windows.get(key);
    if (!window || window.ends_ms <= now_ms) {
      if (this.#windows.size >= SWEPT_AT)
        for (const [each, { ends_ms }] of this.#windows) if (ends_ms <= now_ms) this.#windows.delete(each);
      window = { count: 0, ends_ms: now_ms + this.#window_ms };
      this.#windows.set(key, window);
    }
    window.count += times;
    // Whole: a sum of fractions may be more than its parts.
    return { count: window.count, left_ms: Math.round(window.ends_ms - now_ms) };
  }
}

/** A network assigns one customer a whole /64 of IPv6 addresses. */
function addressGroup(ip: string): string {
  if (!ip.includes(':') || ip.includes('.')) return ip;
  return `${firstGroups(ip, 4)}::/64`;
}

const CHANGES_WINDOW_MS = 3_600_000;

/**
 * How many changes a principal made in an hour. Each may leave rows that are kept for days (stored answers, events) or for good (audit
 * entries, names of HTTP ports), and no quota bounds those. With several control planes there may be as many times more.
 */
export class ChangeCounts {
  readonly #windows: Windows;

  constructor(now_ms: () => number = () => performance.now()) {
    this.#windows = new Windows(CHANGES_WINDOW_MS, now_ms);
  }

  /** @throws AppError RATE_LIMITED */
  require(principal: string, most: number): void {
    const { count, left_ms } = this.#windows.find(principal);
    if (count < most) return;
    throw new AppError('RATE_LIMITED', {
      message: `You have made ${most} changes in an hour. Wait. You can still delete and stop.`,
      retry_after_seconds: Math.ceil(left_ms / 1000),
    });
  }

  add(principal: string): void {
    this.#windows.add(principal, 1);
  }
}
