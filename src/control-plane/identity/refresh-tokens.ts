/**
 * The refresh tokens of one session: each refresh replaces the token by the next.
 *
 *   prefix + family (21 characters) + own part (22 characters) + checksum
 *
 * - All tokens of a session share a family, so that a replaced token of any age is recognised.
 * - The next token is derived from the one before and the root key. So a recently replaced token gets the session's current
 *   token again, although the database stores only hashes: two pages that refresh at once, or a lost response, do not
 *   end the session.
 */
import { createHmac } from 'node:crypto';
import { deriveKey } from '../../shared/seal.ts';
import { base62, hashToken, newToken, REFRESH_PREFIX, tokenOf } from './tokens.ts';

const FAMILY_LENGTH = 21;
const OWN_LENGTH = 22;
/** At most so many are issued while a replaced token is still accepted. */
const MOST_STEPS = 1_000;

export interface RefreshToken {
  readonly token: string;
  readonly token_hash: Buffer;
  readonly family_hash: Buffer;
}

/** The family of a well-formed token. */
export function refreshToken(token: string): RefreshToken {
  const family = familyOf(token);
  return { token, token_hash: hashToken(token), family_hash: hashToken(family) };
}

/** The first of a session. */
export function firstRefreshToken(): RefreshToken {
  return refreshToken(newToken(REFRESH_PREFIX));
}

export class RefreshTokens {
  readonly #key: Buffer;

  constructor(root_key: Uint8Array) {
    this.#key = deriveKey(root_key, 'berth refresh tokens v1');
  }

  next({ token }: RefreshToken): RefreshToken {
    const mac = createHmac('sha256', this.#key).update(token).digest();
    return refreshToken(tokenOf(REFRESH_PREFIX, familyOf(token) + base62(mac, OWN_LENGTH)));
  }

  /** The token with this hash, derived from the given one; null: not derivable, because the root key is another. */
  find(from: RefreshToken, token_hash: Buffer): RefreshToken | null {
    let at = from;
    for (let step = 0; step < MOST_STEPS; step++) {
      at = this.next(at);
      if (at.token_hash.equals(token_hash)) return at;
    }
    return null;
  }
}

function familyOf(token: string): string {
  return token.slice(REFRESH_PREFIX.length, REFRESH_PREFIX.length + FAMILY_LENGTH);
}
