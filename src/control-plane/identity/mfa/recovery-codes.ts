/**
 * Recovery codes: ten at a time, 80 random bits each, shown once, each valid for one login. They are four groups of
 * Crockford's base32 (https://www.crockford.com/base32.html). Capitals, missing hyphens, and O, I and L for the digits
 * they resemble are accepted. The database stores only the SHA-256, which is enough for 80 random bits.
 */
import { createHash, randomInt } from 'node:crypto';

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
