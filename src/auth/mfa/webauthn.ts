/**
 * The two WebAuthn ceremonies (Web Authentication Level 3, sections 7.1 and 7.2), by @simplewebauthn/server. What that
 * package leaves to its caller is here: challenges are ours, good for five minutes, and used up by the first answer,
 * right or wrong; a credential is one account's; a signature counter only goes up.
 *
 * The package, and the two hundred modules of it, is loaded by the first ceremony: most starts see none.
 */
import type {
  AuthenticationResponseJSON,
  PublicKeyCredentialCreationOptionsJSON,
  RegistrationResponseJSON,
} from '@simplewebauthn/server';
import type { Tx } from '../../db/pool.ts';
import type { StoredCredential } from '../../db/tables.ts';
import { messageOf } from '../../lib/errors.ts';
import type { MfaFactorId, UserId } from '../../lib/ids.ts';
import { CHALLENGE_LIFETIME_S, type MfaContext } from './model.ts';
import { RP_NAME, relyingParty, requireRelyingParty } from './relying-party.ts';
import {
  type ChallengePurpose,
  confirmedFactors,
  insertChallenge,
  takeChallenge,
  useCounter,
} from './store.ts';

/** EdDSA, ES256, RS256 (IANA, COSE Algorithms). */
const ALGORITHMS = [-8, -7, -257];
/** WebAuthn L3, section 7.1, step 25. */
const MAX_CREDENTIAL_ID_BYTES = 1023;
const MAX_TRANSPORTS = 10;
/** As challenges are made; what else a caller may have put there, a NUL for one, the database would not take. */
const BASE64URL = /^[\w-]+$/;

/** The account as authenticators know it (WebAuthn L3, section 5.4.3): the opaque id, no address. */
export function userHandle(user_id: UserId): string {
  return Buffer.from(user_id).toString('base64url');
}

/** What `navigator.credentials.create()` takes. @throws AppError CONFLICT where WebAuthn cannot work */
export async function registrationOptions(
  tx: Tx,
  context: MfaContext,
  user_id: UserId,
  account: { readonly email: string; readonly name: string },
): Promise<PublicKeyCredentialCreationOptionsJSON> {
  const { id } = requireRelyingParty(context.public_url);
  const present = await confirmedFactors(tx, user_id);
  const { generateRegistrationOptions } = await import('@simplewebauthn/server');
  const options = await generateRegistrationOptions({
    rpName: RP_NAME,
    rpID: id,
    userID: new Uint8Array(Buffer.from(user_id)),
    userName: account.email,
    userDisplayName: account.name,
    timeout: CHALLENGE_LIFETIME_S * 1000,
    attestationType: 'none',
    excludeCredentials: present.flatMap(({ credential }) =>
      credential === null ? [] : [descriptor(credential)],
    ),
    authenticatorSelection: { residentKey: 'preferred', userVerification: 'preferred' },
    supportedAlgorithmIDs: ALGORITHMS,
  });
  await insertChallenge(tx, options.challenge, 'register', user_id);
  return options;
}

/** A credential as options list it. */
export function descriptor({ id, transports }: Pick<StoredCredential, 'id' | 'transports'>) {
  return { id, transports: [...transports] };
}

/** The credential of a right answer to {@link registrationOptions} of this account; null of a wrong one. */
export async function verifyRegistration(
  tx: Tx,
  context: MfaContext,
  user_id: UserId,
  answer: RegistrationResponseJSON,
): Promise<StoredCredential | null> {
  const party = relyingParty(context.public_url);
  const challenge = await takeAnswered(tx, answer, 'register');
  if (!party || challenge?.user_id !== user_id) return null;
  try {
    await refuseCertificates(answer);
    const { verifyRegistrationResponse } = await import('@simplewebauthn/server');
    const { registrationInfo } = await verifyRegistrationResponse({
      response: answer,
      expectedChallenge: challenge.challenge,
      expectedOrigin: party.origin,
      expectedRPID: party.id,
      requireUserVerification: false,
      supportedAlgorithmIDs: ALGORITHMS,
    });
    if (!registrationInfo) return null;
    const { id, publicKey, counter } = registrationInfo.credential;
    if (Buffer.from(id, 'base64url').length > MAX_CREDENTIAL_ID_BYTES) return null;
    const public_key = Buffer.from(publicKey).toString('base64url');
    return { id, public_key, counter, transports: transportsOf(answer) };
  } catch (error) {
    context.log.info({ reason: messageOf(error), user_id }, 'a WebAuthn registration was refused');
    return null;
  }
}

/**
 * We ask for no attestation. Statements with certificates are refused, not checked: the check would fetch revocation
 * lists from wherever the certificate says.
 */
async function refuseCertificates(answer: RegistrationResponseJSON): Promise<void> {
  const { decodeAttestationObject } = await import('@simplewebauthn/server/helpers');
  const object = decodeAttestationObject(
    new Uint8Array(Buffer.from(answer.response.attestationObject, 'base64url')),
  );
  const format = object.get('fmt');
  const self_attested = format === 'packed' && object.get('attStmt').get('x5c') === undefined;
  if (format !== 'none' && !self_attested) throw new Error(`attestation ${String(format)} was not asked for`);
}

function transportsOf({ response }: RegistrationResponseJSON): string[] {
  const given: unknown = response.transports;
  if (!Array.isArray(given)) return [];
  const known = given.filter(
    (each): each is string => typeof each === 'string' && /^[a-z-]{1,32}$/.test(each),
  );
  return [...new Set(known)].slice(0, MAX_TRANSPORTS);
}

export interface Assertion {
  readonly challenge: string;
  readonly answer: AuthenticationResponseJSON;
  readonly factor: {
    readonly id: MfaFactorId;
    readonly user_id: UserId;
    readonly credential: StoredCredential;
  };
  /** By PIN, fingerprint, …: the authenticator must have checked who it is. */
  readonly user_verification: boolean;
}

/** Whether the answer is this credential's to this challenge, which was taken. Takes its signature counter if so. */
export async function verifyAssertion(tx: Tx, context: MfaContext, assertion: Assertion): Promise<boolean> {
  const { id, user_id } = assertion.factor;
  const counter = await signedCounter(context, assertion);
  if (counter === null) return false;
  if (await useCounter(tx, id, counter)) return true;
  context.log.warn(
    { factor_id: id, user_id },
    'a signature counter did not go up: the authenticator may have a copy',
  );
  return false;
}

/** The signature counter of an answer that is right in all else; null of one that is not. */
async function signedCounter(context: MfaContext, assertion: Assertion): Promise<number | null> {
  const { challenge, answer, factor, user_verification } = assertion;
  const party = relyingParty(context.public_url);
  if (!party) return null;
  // Absent or null where the authenticator keeps none.
  const handle: unknown = answer.response.userHandle ?? null;
  if (handle !== null && handle !== userHandle(factor.user_id)) return null;
  const { id, public_key } = factor.credential;
  try {
    const { verifyAuthenticationResponse } = await import('@simplewebauthn/server');
    const { verified, authenticationInfo } = await verifyAuthenticationResponse({
      response: answer,
      expectedChallenge: challenge,
      expectedOrigin: party.origin,
      expectedRPID: party.id,
      requireUserVerification: user_verification,
      // The counter is compared by the statement that takes it, once the signature is known to be right.
      credential: { id, publicKey: new Uint8Array(Buffer.from(public_key, 'base64url')), counter: 0 },
    });
    return verified ? authenticationInfo.newCounter : null;
  } catch (error) {
    context.log.info({ reason: messageOf(error), factor_id: factor.id }, 'a WebAuthn assertion was refused');
    return null;
  }
}

/** Uses up the challenge that is answered; undefined when it is not one of ours, too old or answered already. */
export async function takeAnswered(
  tx: Tx,
  answer: RegistrationResponseJSON | AuthenticationResponseJSON,
  purpose: ChallengePurpose,
): Promise<{ challenge: string; user_id: UserId | null } | undefined> {
  const challenge = challengeIn(answer.response.clientDataJSON);
  const taken = challenge === null ? undefined : await takeChallenge(tx, challenge, purpose);
  return challenge !== null && taken ? { challenge, user_id: taken.user_id } : undefined;
}

/** Of the client data (WebAuthn L3, section 5.8.1); null too for an answer made inside another site's page. */
function challengeIn(client_data: string): string | null {
  let data: unknown;
  try {
    data = JSON.parse(Buffer.from(client_data, 'base64url').toString('utf8'));
  } catch {
    return null;
  }
  if (typeof data !== 'object' || data === null) return null;
  const { challenge, crossOrigin } = data as Record<string, unknown>;
  return typeof challenge === 'string' && BASE64URL.test(challenge) && crossOrigin !== true
    ? challenge
    : null;
}
