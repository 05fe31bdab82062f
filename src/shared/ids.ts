/**
 * Makes and checks ids of resources and of requests. An id has a prefix that names its kind. Ids of resources sort by
 * time of creation; the rest of a request id is random.
 */
import { randomFillSync } from 'node:crypto';

/** Drawn ahead: a system call for a few bytes costs as much as one for thousands. */
const drawn = Buffer.alloc(4096);
let drawn_at = drawn.length;

/**
 * Bytes for ids, each returned once; at most 4096, valid until the next call. Not for secrets: bytes drawn ahead lie in memory for a
 * while.
 */
export function drawRandom(bytes: number): Buffer {
  if (drawn_at + bytes > drawn.length) {
    randomFillSync(drawn);
    drawn_at = 0;
  }
  drawn_at += bytes;
  return drawn.subarray(drawn_at - bytes, drawn_at);
}

/**
 * Ids are `<prefix>_<26 characters>`: 48 bits of milliseconds and 80 random bits in lower-case Crockford base32, so they sort by
 * creation time (the layout of ULID, https://github.com/ulid/spec).
 */
export const ID_PREFIXES = [
  'usr',
  'org',
  'sa',
  'ak',
  'sess',
  'inst',
  'vm',
  'key',
  'wh',
  'whd',
  'ntf',
  'evt',
  'host',
  'ing',
  'aud',
  'mfa',
  'inv',
  'port',
  'exec',
  'flush',
  'mail',
] as const;
export type IdPrefix = (typeof ID_PREFIXES)[number];
export type Id<P extends IdPrefix> = string & { readonly __id: P };

export type UserId = Id<'usr'>;
export type OrgId = Id<'org'>;
export type SessionId = Id<'sess'>;
export type ApiKeyId = Id<'ak'>;
export type ServiceAccountId = Id<'sa'>;
export type InstanceId = Id<'inst'>;
export type VmId = Id<'vm'>;
export type SshKeyId = Id<'key'>;
export type HostId = Id<'host'>;
export type IngressId = Id<'ing'>;
export type AuditId = Id<'aud'>;
export type MfaFactorId = Id<'mfa'>;
export type InvitationId = Id<'inv'>;
export type HttpPortId = Id<'port'>;
export type ExecId = Id<'exec'>;
export type EventId = Id<'evt'>;
export type NotificationId = Id<'ntf'>;
export type FlushId = Id<'flush'>;
export type WebhookId = Id<'wh'>;
export type WebhookDeliveryId = Id<'whd'>;
export type MailId = Id<'mail'>;

const ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz';
const BODY = /^[0-9a-hjkmnp-tv-z]{26}$/;

/** Big-endian, without a fraction: sorts as the bytes do. */
function base32(bytes: Uint8Array): string {
  let out = '';
  let left = 0;
  let bits = 0;
  for (let at = bytes.length - 1; at >= 0; at--) {
    left |= (bytes[at] ?? 0) << bits;
    for (bits += 8; bits >= 5; bits -= 5) {
      out = ALPHABET.charAt(left & 31) + out;
      left >>= 5;
    }
  }
  return bits > 0 ? ALPHABET.charAt(left) + out : out;
}

const ID_BYTES = 16;

export function newId<P extends IdPrefix>(prefix: P, now_ms = Date.now()): Id<P> {
  const bytes = drawRandom(ID_BYTES);
  bytes.writeUIntBE(now_ms, 0, 6);
  return `${prefix}_${base32(bytes)}` as Id<P>;
}

export function isId<P extends IdPrefix>(prefix: P, value: string): value is Id<P> {
  return value.startsWith(`${prefix}_`) && BODY.test(value.slice(prefix.length + 1));
}

/** A new request id: `req_` and 96 random bits. */
export function newRequestId(): string {
  return `req_${drawRandom(12).toString('hex')}`;
}
