/**
 * Verifies second factors: a time-based code (TOTP, RFC 6238), a recovery code, or a passkey or security key. Also logs
 * in by a passkey alone, if the authenticator has verified its user. Each code, and each response of an authenticator,
 * is accepted once.
 */
import { createHash, createHmac, randomInt, timingSafeEqual } from 'node:crypto';
import type {
  AuthenticationResponseJSON,
  PublicKeyCredentialRequestOptionsJSON,
} from '@simplewebauthn/server';
import { HOTP, Secret, TOTP } from 'otpauth';
import { AppError } from '../../../shared/errors.ts';
import type { MfaFactorId, UserId } from '../../../shared/ids.ts';
import { deriveKey } from '../../../shared/seal.ts';
import type { StoredCredential } from '../../db/column-types.ts';
import type { Db, Tx } from '../../db/pool.ts';
import type { FactorVerdict } from '../login.ts';
import { CHALLENGE_LIFETIME_S, type MfaContext } from './model.ts';
import {
  confirmedFactors,
  findCredentialsByEmail,
  findFactorByCredential,
  insertChallenge,
  takeRecoveryCode,
  useStep,
} from './store.ts';
import { descriptor, requireRelyingParty, takeAnswered, userHandle, verifyAssertion } from './webauthn.ts';

// Time-based one-time passwords, RFC 6238: HMAC-SHA-1, 6 digits, steps of 30 s, a secret of 160 bits (RFC 4226,
// section 4, R6). Codes of the previous, current and next step are accepted (RFC 6238, section 5.2). The store remembers
// the last step, so that a code works once.

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

// Recovery codes: ten at a time, 80 random bits each, shown once, each valid for one login. They are four groups of
// Crockford's base32 (https://www.crockford.com/base32.html). Capitals, missing hyphens, and O, I and L for the digits
// they resemble are accepted. The database stores only the SHA-256, which is enough for 80 random bits.

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

// Login with a passkey: alone, with user verification in place of the password, or after the password as the second
// factor. Both begin with {@link passkeyOptions}.
//
// With an address the options name the account's credentials. For an address without credentials or account they name
// made-up ones, always the same, so that they do not reveal which addresses exist (WebAuthn L3, section 14.6.2).

/** The options for `navigator.credentials.get()`. @throws AppError CONFLICT where WebAuthn cannot work */
export async function passkeyOptions(
  db: Db,
  context: MfaContext & { readonly root_key: Uint8Array },
  email: string | null,
): Promise<PublicKeyCredentialRequestOptionsJSON> {
  const { id } = requireRelyingParty(context.public_url);
  const email_key = email?.toLowerCase() ?? null;
  const own = email_key === null ? [] : await findCredentialsByEmail(db, email_key);
  const decoys = email_key === null ? [] : decoyCredentials(context.root_key, email_key);
  const named = own.length > 0 ? own.map(({ credential }) => credential) : decoys;
  const { generateAuthenticationOptions } = await import('@simplewebauthn/server');
  const options = await generateAuthenticationOptions({
    rpID: id,
    timeout: CHALLENGE_LIFETIME_S * 1000,
    allowCredentials: named.map(descriptor),
    // A second factor may be a security key that cannot verify its user.
    userVerification: email === null ? 'required' : 'preferred',
  });
  await insertChallenge(db, options.challenge, 'login', own[0]?.user_id ?? null);
  return options;
}

/** Lengths of credential ids and transports as common authenticators have them. */
const DECOYS = [
  { bytes: 16, transports: ['hybrid', 'internal'] },
  { bytes: 20, transports: ['hybrid', 'internal'] },
  { bytes: 32, transports: ['internal'] },
  { bytes: 48, transports: ['nfc', 'usb'] },
] as const;

/** One; two for one address in four. */
function decoyCredentials(
  root_key: Uint8Array,
  email_key: string,
): Pick<StoredCredential, 'id' | 'transports'>[] {
  const key = deriveKey(root_key, 'berth passkey decoys v1');
  const made = (text: string) => createHmac('sha512', key).update(text).digest();
  const count = made(`count ${email_key}`).readUInt8(0) % 4 === 0 ? 2 : 1;
  return Array.from({ length: count }, (_, n) => {
    const bytes = made(`${n} ${email_key}`);
    const shape = DECOYS[bytes.readUInt8(63) % DECOYS.length] ?? DECOYS[0];
    return { id: bytes.subarray(0, shape.bytes).toString('base64url'), transports: shape.transports };
  });
}

/**
 * The account whose passkey responded with user verification. The lockout does not apply: there is nothing to guess, and
 * an attacker who locks an account by wrong passwords must not keep its owner out.
 * @throws AppError UNAUTHENTICATED, the same for every cause
 */
export async function loginByPasskey(
  db: Db,
  context: MfaContext,
  answer: AuthenticationResponseJSON,
): Promise<UserId> {
  const taken = await takeAnswered(db, answer, 'login');
  const factor = await findFactorByCredential(db, answer.id);
  if (taken && factor?.credential) {
    const { id, user_id, credential } = factor;
    // Section 7.2, step 6: without an address the authenticator names the user.
    const identified =
      taken.user_id === null ? answer.response.userHandle === userHandle(user_id) : taken.user_id === user_id;
    const assertion = {
      challenge: taken.challenge,
      answer,
      factor: { id, user_id, credential },
      user_verification: true,
    };
    if (identified && (await verifyAssertion(db, context, assertion))) return user_id;
  }
  throw new AppError('UNAUTHENTICATED', {
    message: 'That is no passkey of an account here, or the answer came too late.',
  });
}

/** Whether a credential of this account responded to a challenge for this account's login. */
async function isSecondFactor(
  tx: Tx,
  context: MfaContext,
  user_id: UserId,
  answer: AuthenticationResponseJSON,
): Promise<boolean> {
  const taken = await takeAnswered(tx, answer, 'login');
  const factor = await findFactorByCredential(tx, answer.id);
  if (taken?.user_id !== user_id || factor?.user_id !== user_id || !factor.credential) return false;
  const { id, credential } = factor;
  const assertion = {
    challenge: taken.challenge,
    answer,
    factor: { id, user_id, credential },
    user_verification: false,
  };
  return verifyAssertion(tx, context, assertion);
}

/** At most one of them. */
export interface GivenFactor {
  readonly totp_code?: string | undefined;
  readonly recovery_code?: string | undefined;
  readonly webauthn?: AuthenticationResponseJSON | undefined;
}

/** Call it before the password is verified. @throws AppError INVALID_REQUEST if there are several */
export function requireOneFactor({ totp_code, recovery_code, webauthn }: GivenFactor): void {
  const given = [totp_code, recovery_code, webauthn].filter((each) => each !== undefined);
  if (given.length < 2) return;
  throw new AppError('INVALID_REQUEST', { message: 'Send one of totp_code, recovery_code and webauthn.' });
}

/**
 * Verifies and consumes the factor: a code, a recovery code or a response is right only once, even among concurrent
 * requests. Each step is one statement, so `db` may be the pool. A transaction must commit after `wrong` too, because the
 * attempt may have consumed a challenge.
 */
export async function verifySecondFactor(
  context: MfaContext & { readonly db: Tx },
  user_id: UserId,
  given: GivenFactor,
): Promise<FactorVerdict> {
  requireOneFactor(given);
  const { db } = context;
  const factors = await confirmedFactors(db, user_id);
  if (factors.length === 0) return 'not_needed';
  const { totp_code, recovery_code, webauthn } = given;
  let right: boolean;
  if (totp_code !== undefined) right = await useCode(db, context, factors, totp_code);
  else if (recovery_code !== undefined)
    right = await takeRecoveryCode(db, user_id, hashRecoveryCode(recovery_code));
  else if (webauthn !== undefined) right = await isSecondFactor(db, context, user_id, webauthn);
  else return 'missing';
  return right ? 'right' : 'wrong';
}

interface ConfirmedFactor {
  readonly id: MfaFactorId;
  readonly secret: Buffer | null;
}

async function useCode(
  tx: Tx,
  context: MfaContext,
  factors: readonly ConfirmedFactor[],
  code: string,
): Promise<boolean> {
  for (const { id, secret } of factors) {
    if (secret === null) continue;
    const step = matchingStep(openSecret(context, id, secret), code, context.now?.() ?? Date.now());
    if (step !== null && (await useStep(tx, id, step))) return true;
  }
  return false;
}

/** The TOTP secret of a factor, base32. */
export function openSecret(context: Pick<MfaContext, 'factors'>, id: MfaFactorId, sealed: Buffer): string {
  const secret = context.factors.open(sealed, id);
  if (secret === null) throw new Error(`${id}: its secret does not open with the root key`);
  return secret;
}
