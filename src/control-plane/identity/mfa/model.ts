/**
 * Defines the second factors of an account: authenticator apps (TOTP), and passkeys or security keys (WebAuthn).
 *
 *     added ── verify, right ──▶ confirmed ── DELETE ──▶ gone
 *       └── 5 wrong codes, an hour, or DELETE ──────────▶ gone
 *
 * Only a confirmed factor counts at login. Recovery codes exist only beside a confirmed factor: they are created when a
 * factor is confirmed while the account has no codes, and removed with the last factor.
 */
import type { Log } from '../../../shared/log.ts';
import type { QuotaLimits } from '../../../shared/quotas.ts';
import type { Sealer } from '../../../shared/seal.ts';

export const FACTOR_TYPES = ['totp', 'webauthn'] as const;
export type FactorType = (typeof FACTOR_TYPES)[number];

/** Wrong codes in a row, for an unconfirmed factor. */
export const MAX_WRONG_CODES = 5;
export const UNCONFIRMED_LIFETIME_MINUTES = 60;
export const CHALLENGE_LIFETIME_S = 300;

export interface MfaContext {
  /** Seals TOTP secrets, each bound to its factor's id. */
  readonly factors: Sealer;
  /** The public origin. */
  readonly public_url: string;
  readonly quotas: QuotaLimits;
  readonly log: Pick<Log, 'info' | 'warn'>;
  /** Milliseconds since the epoch; default the system's clock. */
  readonly now?: () => number;
}
