/**
 * Second factors of an account: authenticator apps (TOTP) and passkeys or security keys (WebAuthn).
 *
 *     added ── verify, right ──▶ confirmed ── DELETE ──▶ gone
 *       └── 5 wrong codes, an hour, or DELETE ──────────▶ gone
 *
 * Only a confirmed factor counts at login. Recovery codes exist only beside a confirmed factor: they are made when one
 * is confirmed while the account has none, and go with the last one.
 */
import type { Log } from '../../lib/log.ts';
import type { QuotaLimits } from '../../lib/quotas.ts';
import type { Sealer } from '../../lib/seal.ts';

export const FACTOR_TYPES = ['totp', 'webauthn'] as const;
export type FactorType = (typeof FACTOR_TYPES)[number];

/** In a row, of one unconfirmed factor. */
export const MAX_WRONG_CODES = 5;
export const UNCONFIRMED_LIFETIME_MINUTES = 60;
export const CHALLENGE_LIFETIME_S = 300;

/** What this room needs of the program. */
export interface MfaContext {
  /** Seals TOTP secrets, each bound to its factor's id. */
  readonly factors: Sealer;
  /** The origin people use. */
  readonly public_url: string;
  readonly quotas: QuotaLimits;
  readonly log: Pick<Log, 'info' | 'warn'>;
  /** Milliseconds since the epoch; default the system's clock. */
  readonly now?: () => number;
}
