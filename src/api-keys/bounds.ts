/**
 * How long, and from where, a key works that an API key makes: no longer than the key that makes it, and from nowhere
 * else. Else whoever holds one for an hour could keep its scope for good.
 */
import type { Principal } from '../auth/principal.ts';
import { rfc3339 } from '../lib/clock.ts';
import { AppError } from '../lib/errors.ts';
import { networkWithin } from '../lib/networks.ts';

export interface Bounds {
  /** Null: it does not end by itself. */
  readonly expires_at: Date | null;
  /** In their kept form; empty: from everywhere. */
  readonly allowed_cidrs: readonly string[];
}

/** What was asked for, and where nothing was, the caller's own. @throws AppError FORBIDDEN for more than that */
export function boundsWithin({ credential }: Principal, asked: Bounds): Bounds {
  if (credential.kind !== 'api_key') return asked;
  const { ends_at, allowed_cidrs: own } = credential;
  if (ends_at !== null && asked.expires_at !== null && asked.expires_at > ends_at) {
    throw new AppError('FORBIDDEN', {
      message: `The key would outlive the one that makes it, which ends at ${rfc3339(ends_at)}.`,
    });
  }
  const beyond = own.length === 0 ? undefined : asked.allowed_cidrs.find((cidr) => !networkWithin(cidr, own));
  if (beyond !== undefined) {
    throw new AppError('FORBIDDEN', {
      message: `The key would work from ${beyond}, where the one that makes it does not.`,
    });
  }
  return {
    expires_at: asked.expires_at ?? ends_at,
    allowed_cidrs: asked.allowed_cidrs.length === 0 ? own : asked.allowed_cidrs,
  };
}
