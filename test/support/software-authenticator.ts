/**
 * An authenticator (a passkey's device) and its browser in software, with options to make each step wrong. It is
 * written from the specification (Web Authentication Level 3, sections 5.8.1, 6.1, 6.5.1 and 8.7; COSE keys: RFC 9053,
 * section 7.1.1) without the server's library: P-256 keys by node:crypto, and CBOR by hand.
 */
import { createHash, generateKeyPairSync, type KeyObject, randomBytes, sign } from 'node:crypto';
import type {
  AuthenticationResponseJSON,
  PublicKeyCredentialCreationOptionsJSON,
  PublicKeyCredentialRequestOptionsJSON,
  RegistrationResponseJSON,
} from '@simplewebauthn/server';

const USER_PRESENT = 0x01;
const USER_VERIFIED = 0x04;
const ATTESTED_DATA = 0x40;

export interface Wrongs {
  /** A wrong origin of the page. */
  readonly origin?: string;
  readonly rp_id?: string;
  readonly challenge?: string;
  /** The user is present but not verified. */
  readonly unverified?: boolean;
  readonly counter?: number;
  /** null: none, like a credential that is not discoverable. */
  readonly user_handle?: string | null;
  readonly cross_origin?: boolean;
  readonly forged?: boolean;
  /** Statement format and statement, CBOR; default `none` and an empty map. */
  readonly attestation?: readonly [format: string, statement: Buffer];
  /** Not wrong: `packed`, signed by the credential itself (section 8.2). */
  readonly self_attested?: boolean;
}

export interface Passkey {
  readonly id: string;
  readonly private_key: KeyObject;
  readonly user_handle: string;
  counter: number;
}

const b64 = (bytes: Uint8Array) => Buffer.from(bytes).toString('base64url');
const sha256 = (bytes: string | Uint8Array) => createHash('sha256').update(bytes).digest();

/** The subset of CBOR (RFC 8949) that is needed. */
export const cbor = {
  head(major: number, n: number): Buffer {
    if (n < 24) return Buffer.from([(major << 5) | n]);
    if (n < 256) return Buffer.from([(major << 5) | 24, n]);
    return Buffer.from([(major << 5) | 25, n >> 8, n & 255]);
  },
  int: (n: number) => (n >= 0 ? cbor.head(0, n) : cbor.head(1, -1 - n)),
  bytes: (value: Uint8Array) => Buffer.concat([cbor.head(2, value.length), value]),
  text: (value: string) => Buffer.concat([cbor.head(3, Buffer.byteLength(value)), Buffer.from(value)]),
  array: (items: Buffer[]) => Buffer.concat([cbor.head(4, items.length), ...items]),
  map: (pairs: [Buffer, Buffer][]) => Buffer.concat([cbor.head(5, pairs.length), ...pairs.flat()]),
};

export class SoftwareAuthenticator {
  readonly #origin: string;
  readonly #passkeys = new Map<string, Passkey>();

  constructor(origin: string) {
    this.#origin = origin;
  }

  /** `navigator.credentials.create()`, then `toJSON()`. */
  create(
    options: PublicKeyCredentialCreationOptionsJSON,
    wrongs: Wrongs = {},
  ): { passkey: Passkey; answer: RegistrationResponseJSON } {
    const { publicKey, privateKey } = generateKeyPairSync('ec', { namedCurve: 'P-256' });
    const raw_id = randomBytes(32);
    const passkey = {
      id: b64(raw_id),
      private_key: privateKey,
      user_handle: options.user.id,
      counter: wrongs.counter ?? 0,
    };
    this.#passkeys.set(passkey.id, passkey);
    const aaguid = Buffer.alloc(16);
    const length = Buffer.from([0, raw_id.length]);
    const attested = Buffer.concat([aaguid, length, raw_id, coseKey(publicKey)]);
    const auth_data = authenticatorData(
      wrongs.rp_id ?? options.rp.id ?? '',
      passkey.counter,
      wrongs,
      attested,
    );
    const client_data = this.#clientData('webauthn.create', options.challenge, wrongs);
    const [format, statement] =
      wrongs.self_attested === true
        ? selfAttestation(auth_data, client_data, privateKey)
        : (wrongs.attestation ?? ['none', cbor.map([])]);
    const attestation_object = cbor.map([
      [cbor.text('fmt'), cbor.text(format)],
      [cbor.text('attStmt'), statement],
      [cbor.text('authData'), cbor.bytes(auth_data)],
    ]);
    const answer: RegistrationResponseJSON = {
      id: passkey.id,
      rawId: passkey.id,
      type: 'public-key',
      authenticatorAttachment: 'platform',
      clientExtensionResults: { credProps: { rk: true } },
      response: {
        clientDataJSON: client_data,
        attestationObject: b64(attestation_object),
        authenticatorData: b64(auth_data),
        transports: ['internal', 'hybrid'],
        publicKeyAlgorithm: -7,
        publicKey: b64(publicKey.export({ format: 'der', type: 'spki' })),
      },
    };
    return { passkey, answer };
  }

  /** `navigator.credentials.get()`, then `toJSON()`. Without `passkey` it takes one that the options allow. */
  get(
    options: PublicKeyCredentialRequestOptionsJSON,
    wrongs: Wrongs & { passkey?: Passkey } = {},
  ): AuthenticationResponseJSON {
    const allowed = options.allowCredentials ?? [];
    const passkey =
      wrongs.passkey ??
      [...this.#passkeys.values()].find(
        ({ id }) => allowed.length === 0 || allowed.some((each) => each.id === id),
      );
    if (!passkey) throw new DOMException('no credential is allowed', 'NotAllowedError');
    passkey.counter += 1;
    const auth_data = authenticatorData(
      wrongs.rp_id ?? options.rpId ?? '',
      wrongs.counter ?? passkey.counter,
      wrongs,
      null,
    );
    const client_data = this.#clientData('webauthn.get', options.challenge, wrongs);
    const signed = Buffer.concat([auth_data, sha256(Buffer.from(client_data, 'base64url'))]);
    const signature = sign('sha256', wrongs.forged ? randomBytes(32) : signed, passkey.private_key);
    const user_handle = wrongs.user_handle === undefined ? passkey.user_handle : wrongs.user_handle;
    return {
      id: passkey.id,
      rawId: passkey.id,
      type: 'public-key',
      authenticatorAttachment: 'platform',
      clientExtensionResults: {},
      response: {
        clientDataJSON: client_data,
        authenticatorData: b64(auth_data),
        signature: b64(signature),
        // Browsers send null if there is none.
        userHandle: user_handle as string,
      },
    };
  }

  #clientData(type: string, challenge: string, wrongs: Wrongs): string {
    const data = {
      type,
      challenge: wrongs.challenge ?? challenge,
      origin: wrongs.origin ?? this.#origin,
      crossOrigin: wrongs.cross_origin ?? false,
    };
    return b64(Buffer.from(JSON.stringify(data)));
  }
}

function authenticatorData(rp_id: string, counter: number, wrongs: Wrongs, attested: Buffer | null): Buffer {
  const flags =
    USER_PRESENT | (wrongs.unverified === true ? 0 : USER_VERIFIED) | (attested === null ? 0 : ATTESTED_DATA);
  const count = Buffer.alloc(4);
  count.writeUInt32BE(counter);
  return Buffer.concat([sha256(rp_id), Buffer.from([flags]), count, attested ?? Buffer.alloc(0)]);
}

function selfAttestation(auth_data: Buffer, client_data: string, key: KeyObject): [string, Buffer] {
  const signed = Buffer.concat([auth_data, sha256(Buffer.from(client_data, 'base64url'))]);
  const statement = cbor.map([
    [cbor.text('alg'), cbor.int(-7)],
    [cbor.text('sig'), cbor.bytes(sign('sha256', signed, key))],
  ]);
  return ['packed', statement];
}

/** EC2, ES256, P-256. */
function coseKey(key: KeyObject): Buffer {
  const { x = '', y = '' } = key.export({ format: 'jwk' });
  return cbor.map([
    [cbor.int(1), cbor.int(2)],
    [cbor.int(3), cbor.int(-7)],
    [cbor.int(-1), cbor.int(1)],
    [cbor.int(-2), cbor.bytes(Buffer.from(x, 'base64url'))],
    [cbor.int(-3), cbor.bytes(Buffer.from(y, 'base64url'))],
  ]);
}
