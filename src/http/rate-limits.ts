/**
 * Rate limits: requests a minute of a principal (a user or service account, with all its credentials together), and of an address
 * on the routes that take a password or a token. Headers follow the IETF draft "RateLimit header fields for HTTP", revision 10.
 */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { actorOf, type Principal } from '../auth/principal.ts';
import type { Db } from '../db/pool.ts';
import { SharedLimit } from '../db/shared-limit.ts';
import { AppError } from '../lib/errors.ts';
import { firstGroups } from '../lib/ipv6.ts';

const WINDOW_S = 60;

/** Requests in the window. */
export interface RequestLimits {
  readonly principal: number;
  readonly address: number;
}

export class RateLimits {
  readonly #limits: RequestLimits | null;
  readonly #counts: Readonly<Record<keyof RequestLimits, SharedLimit>> | null;

  /** Null: no limits. */
  constructor(limits: RequestLimits | null, db: Db) {
    const counts = (name: keyof RequestLimits, most: number) =>
      new SharedLimit(db, { name, most, window_s: WINDOW_S });
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

  async #count(
    name: keyof RequestLimits,
    key: string,
    reply?: FastifyReply | undefined,
    requests = 1,
  ): Promise<void> {
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
