import { randomBytes } from 'node:crypto';

/**
 * Ids: `<prefix>_<26 characters>`: 48 bits of milliseconds and 80 random bits in Crockford's base32,
 * lower case, so they sort by time of making (the layout of ULID, https://github.com/ulid/spec).
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
  'aud',
  'mfa',
  'inv',
  'flush',
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
export type AuditId = Id<'aud'>;
export type MfaFactorId = Id<'mfa'>;
export type InvitationId = Id<'inv'>;
export type EventId = Id<'evt'>;
export type NotificationId = Id<'ntf'>;
export type FlushId = Id<'flush'>;

const ALPHABET = '0123456789abcdefghjkmnpqrstvwxyz';
const BODY = /^[0-9a-hjkmnp-tv-z]{26}$/;

function base32(bytes: Uint8Array): string {
  let bits = 0n;
  for (const byte of bytes) bits = (bits << 8n) | BigInt(byte);
  let out = '';
  for (let i = 0; i < Math.ceil((bytes.length * 8) / 5); i++) {
    out = ALPHABET.charAt(Number(bits & 31n)) + out;
    bits >>= 5n;
  }
  return out;
}

export function newId<P extends IdPrefix>(prefix: P, now_ms = Date.now()): Id<P> {
  const bytes = randomBytes(16);
  bytes.writeUIntBE(now_ms, 0, 6);
  return `${prefix}_${base32(bytes)}` as Id<P>;
}

export function isId<P extends IdPrefix>(prefix: P, value: string): value is Id<P> {
  return value.startsWith(`${prefix}_`) && BODY.test(value.slice(prefix.length + 1));
}
