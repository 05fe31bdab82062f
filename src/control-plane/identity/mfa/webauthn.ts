/**
 * Registers and verifies WebAuthn credentials (the two ceremonies of Web Authentication Level 3, sections 7.1 and 7.2)
 * with the package @simplewebauthn/server. The package leaves these checks to this file:
 *
 * - A challenge was issued here, is valid for five minutes, and is consumed by the first response, right or wrong.
 * - A credential belongs to one account.
 * - A signature counter only rises.
 *
 * The first ceremony loads the package with its two hundred modules; most processes never need it.
 */
import { isIP } from 'node:net';
import type {
  AuthenticationResponseJSON,
  PublicKeyCredentialCreationOptionsJSON,
  RegistrationResponseJSON,
} from '@simplewebauthn/server';
import { AppError, messageOf } from '../../../shared/errors.ts';
import type { MfaFactorId, UserId } from '../../../shared/ids.ts';
import type { StoredCredential } from '../../db/column-types.ts';
import type { Tx } from '../../db/pool.ts';
import { CHALLENGE_LIFETIME_S, type MfaContext } from './model.ts';
import {
  type ChallengePurpose,
  confirmedFactors,
  insertChallenge,
  takeChallenge,
  useCounter,
} from './store.ts';

const RP_NAME = 'Berth';

export interface RelyingParty {
  readonly id: string;
  readonly origin: string;
}

/**
 * The relying party's id and origin (WebAuthn L3, sections 5.1.3 and 13.4.9). The id is the public host name, and cannot be an IP
 * address. For a loopback address it is `localhost`, which browsers treat as secure without TLS. At any other address WebAuthn
 * cannot work, and the result is null.
 */
export function relyingParty(public_url: string): RelyingParty | null {
  const url = new URL(public_url);
  const host = url.hostname.replace(/^\[(.*)\]$/, '$1');
  if (host === 'localhost' || host === '::1' || (isIP(host) === 4 && host.startsWith('127.'))) {
    url.hostname = 'localhost';
  } else if (isIP(host) !== 0) {
    return null;
  }
  return { id: url.hostname, origin: url.origin };
}

/** @throws AppError CONFLICT where WebAuthn cannot work */
export function requireRelyingParty(public_url: string): RelyingParty {
  const found = relyingParty(public_url);
  if (found) return found;
  throw new AppError('CONFLICT', {
    message: 'Passkeys need a host name, and this service is reached at an address: set BERTH_PUBLIC_URL.',
  });
}

/** EdDSA, ES256, RS256 (IANA, COSE Algorithms). */
const ALGORITHMS = [-8, -7, -257];
/** WebAuthn L3, section 7.1, step 25. */
const MAX_CREDENTIAL_ID_BYTES = 1023;
const MAX_TRANSPORTS = 10;
/** The form of our challenges; the database rejects some other texts, such as a NUL. */
const BASE64URL = /^[\w-]+$/;

/** The user handle (WebAuthn L3, section 5.4.3): the opaque id, not the address. */
export function userHandle(user_id: UserId): string {
  return Buffer.from(user_id).toString('base64url');
}

/** The options for `navigator.credentials.create()`. @throws AppError CONFLICT where WebAuthn cannot work */
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

/** The credential of a right response to {@link registrationOptions} for this account; null for a wrong one. */
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
 * We request no attestation. Statements with certificates are rejected unchecked: the check would fetch revocation lists
 * from any address that the certificate names.
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
  /** The authenticator must have verified the user, by PIN, fingerprint, …. */
  readonly user_verification: boolean;
}

/** Whether this credential responded to this consumed challenge. If so, stores its signature counter. */
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

/** The signature counter of a response that is otherwise right; null if it is wrong. */
async function signedCounter(context: MfaContext, assertion: Assertion): Promise<number | null> {
  const { challenge, answer, factor, user_verification } = assertion;
  const party = relyingParty(context.public_url);
  if (!party) return null;
  // Absent or null if the authenticator has none.
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
      // The statement that stores the counter compares it, after the signature is verified.
      credential: { id, publicKey: new Uint8Array(Buffer.from(public_key, 'base64url')), counter: 0 },
    });
    return verified ? authenticationInfo.newCounter : null;
  } catch (error) {
    context.log.info({ reason: messageOf(error), factor_id: factor.id }, 'a WebAuthn assertion was refused');
    return null;
  }
}

/** Consumes the challenge of a response; undefined if it is not ours, expired or consumed. */
export async function takeAnswered(
  tx: Tx,
  answer: RegistrationResponseJSON | AuthenticationResponseJSON,
  purpose: ChallengePurpose,
): Promise<{ challenge: string; user_id: UserId | null } | undefined> {
  const challenge = challengeIn(answer.response.clientDataJSON);
  const taken = challenge === null ? undefined : await takeChallenge(tx, challenge, purpose);
  return challenge !== null && taken ? { challenge, user_id: taken.user_id } : undefined;
}

/** The challenge in the client data (WebAuthn L3, section 5.8.1); null also for a response from another site's frame. */
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
