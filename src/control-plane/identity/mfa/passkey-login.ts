/**
 * Login with a passkey: alone, with user verification in place of the password, or after the password as the second
 * factor. Both begin with {@link passkeyOptions}.
 *
 * With an address the options name the account's credentials. For an address without credentials or account they name
 * made-up ones, always the same, so that they do not reveal which addresses exist (WebAuthn L3, section 14.6.2).
 */
import { createHmac } from 'node:crypto';
import type {
  AuthenticationResponseJSON,
  PublicKeyCredentialRequestOptionsJSON,
} from '@simplewebauthn/server';
import { AppError } from '../../../shared/errors.ts';
import type { UserId } from '../../../shared/ids.ts';
import { deriveKey } from '../../../shared/seal.ts';
import type { Db, Tx } from '../../db/pool.ts';
import type { StoredCredential } from '../../db/tables.ts';
import { CHALLENGE_LIFETIME_S, type MfaContext } from './model.ts';
import { findCredentialsByEmail, findFactorByCredential, insertChallenge } from './store.ts';
import { descriptor, requireRelyingParty, takeAnswered, userHandle, verifyAssertion } from './webauthn.ts';

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
export async function isSecondFactor(
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
