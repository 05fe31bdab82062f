/**
 * Time-based one-time passwords, RFC 6238: HMAC-SHA-1, 6 digits, steps of 30 s, a secret of 160 bits (RFC 4226,
 * section 4, R6). Codes of the previous, current and next step are accepted (RFC 6238, section 5.2). The store remembers
 * the last step, so that a code works once.
 */
import { createHash, randomInt, timingSafeEqual } from 'node:crypto';
import { HOTP, Secret, TOTP } from 'otpauth';

const ISSUER = 'Berth';
const ALGORITHM = 'SHA1';
const DIGITS = 6;
const PERIOD_S = 30;
const WINDOW_STEPS = 1;
const SECRET_BYTES = 20;

/** A new secret, base32 (RFC 4648, section 6) without padding. */
export function newTotpSecret(): string {
  return new Secret({ size: SECRET_BYTES }).base32;
}

/** `otpauth://totp/…`: https://github.com/google/google-authenticator/wiki/Key-Uri-Format */
export function otpauthUrl(secret: string, account: string): string {
  const shape = { issuer: ISSUER, algorithm: ALGORITHM, digits: DIGITS, period: PERIOD_S };
  return new TOTP({ ...shape, label: account, secret: Secret.fromBase32(secret) }).toString();
}

/** The latest time step around `now_ms` with this code, or null. Runs in constant time. */
export function matchingStep(secret: string, code: string, now_ms: number): number | null {
  const given = Buffer.from(code.replaceAll(' ', ''));
  const key = Secret.fromBase32(secret);
  const present = Math.floor(now_ms / 1000 / PERIOD_S);
  let found: number | null = null;
  for (let step = Math.max(0, present - WINDOW_STEPS); step <= present + WINDOW_STEPS; step++) {
    const right = Buffer.from(
      HOTP.generate({ secret: key, algorithm: ALGORITHM, digits: DIGITS, counter: step }),
    );
    if (given.length === right.length && timingSafeEqual(given, right)) found = step;
  }
  return found;
}

/**
 * Recovery codes: ten at a time, 80 random bits each, shown once, each valid for one login. They are four groups of
 * Crockford's base32 (https://www.crockford.com/base32.html). Capitals, missing hyphens, and O, I and L for the digits
 * they resemble are accepted. The database stores only the SHA-256, which is enough for 80 random bits.
 */

const RECOVERY_CODES = 10;
const ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz';
const GROUPS = 4;
const GROUP_LENGTH = 4;

export function newRecoveryCodes(): string[] {
  return Array.from({ length: RECOVERY_CODES }, newRecoveryCode);
}

/** 16 characters of 5 bits. */
function newRecoveryCode(): string {
  const group = () =>
    Array.from({ length: GROUP_LENGTH }, () => ALPHABET.charAt(randomInt(ALPHABET.length))).join('');
  return Array.from({ length: GROUPS }, group).join('-');
}

/** SHA-256 of the normalised code. */
export function hashRecoveryCode(typed: string): Buffer {
  const meant = typed.toLowerCase().replaceAll(/[\s-]/g, '').replaceAll('o', '0').replaceAll(/[il]/g, '1');
  return createHash('sha256').update(meant).digest();
}
