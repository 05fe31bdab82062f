/**
 * Rate limits: requests a minute of a principal (a user or service account, with all its credentials together), and of an address
 * on the routes that take a password or a token. The latter protects accounts, so it is counted in the database, over all
 * control planes. The former only shares a process fairly, and each counts its own. Headers follow the IETF draft
 * "RateLimit header fields for HTTP", revision 10.
 */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { CompiledQuery } from 'kysely';
import {
  type RateLimiterAbstract,
  RateLimiterMemory,
  RateLimiterPostgres,
  type RateLimiterRes,
} from 'rate-limiter-flexible';
import { actorOf, type Principal } from '../auth/principal.ts';
import type { Db } from '../db/pool.ts';
import { AppError } from '../lib/errors.ts';
import { firstGroups } from '../lib/ipv6.ts';

const WINDOW_S = 60;

/** Requests in the window. */
export interface RequestLimits {
  readonly principal: number;
  readonly address: number;
}

export class RateLimits {
  readonly #principals: RateLimiterMemory | null;
  readonly #addresses: RateLimiterPostgres | null;

  /** Null: no limits. */
  constructor(limits: RequestLimits | null, db: Db) {
    this.#principals = limits && new RateLimiterMemory({ points: limits.principal, duration: WINDOW_S });
    this.#addresses = limits && sharedLimiter(limits.address, db);
  }

  /** Without a reply: of an upgrade, whose answer says nothing of limits. @throws AppError RATE_LIMITED */
  async countPrincipal(principal: Principal, reply?: FastifyReply): Promise<void> {
    if (this.#principals) await consume(this.#principals, 'principal', actorOf(principal), reply);
  }

  /** @throws AppError RATE_LIMITED */
  async countAddress(request: FastifyRequest, reply: FastifyReply): Promise<void> {
    if (!this.#addresses) return;
    await consume(this.#addresses, 'address', addressGroup(request.ip), reply);
  }
}

/** Counts in the database. Once an address is refused, this process refuses it without asking, until its window ends. */
function sharedLimiter(points: number, db: Db): RateLimiterPostgres {
  const storeClient = {
    query: ({ text, values }: { readonly text: string; readonly values: readonly unknown[] }) =>
      db.executeQuery(CompiledQuery.raw(text, [...values])),
  };
  return new RateLimiterPostgres({
    ...{ storeClient, storeType: 'client', tableName: 'request_counts', tableCreated: true },
    ...{ keyPrefix: 'address', points, duration: WINDOW_S, inMemoryBlockOnConsumed: points },
  });
}

async function consume(
  limiter: RateLimiterAbstract,
  name: string,
  key: string,
  reply?: FastifyReply,
): Promise<void> {
  let state: RateLimiterRes;
  let exceeded = false;
  try {
    state = await limiter.consume(key);
  } catch (error) {
    if (error instanceof Error) throw error;
    state = error as RateLimiterRes;
    exceeded = true;
  }
  const reset_s = Math.max(1, Math.ceil(state.msBeforeNext / 1000));
  reply?.header('ratelimit-policy', `"${name}";q=${limiter.points};w=${WINDOW_S}`);
  reply?.header('ratelimit', `"${name}";r=${state.remainingPoints};t=${reset_s}`);
  if (exceeded) throw new AppError('RATE_LIMITED', { retry_after_seconds: reset_s });
}

/** A network assigns one customer a whole /64 of IPv6 addresses. */
function addressGroup(ip: string): string {
  if (!ip.includes(':') || ip.includes('.')) return ip;
  return `${firstGroups(ip, 4)}::/64`;
}
