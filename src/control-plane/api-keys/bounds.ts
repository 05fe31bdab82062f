/**
 * The bounds of a key that is made with an API key: it may not outlive that key nor work from other networks. Otherwise a
 * key valid for an hour could extend its own scope for ever.
 */

import { rfc3339 } from '../../shared/clock.ts';
import { AppError } from '../../shared/errors.ts';
import { networkWithin } from '../../shared/networks.ts';
import type { Principal } from '../identity/principal.ts';

export interface Bounds {
  /** Null: never. */
  readonly expires_at: Date | null;
  /** In canonical form; empty: usable from everywhere. */
  readonly allowed_cidrs: readonly string[];
}

/** The requested bounds; absent ones are the caller's. @throws AppError FORBIDDEN if they exceed the caller's */
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
