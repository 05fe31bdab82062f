/**
 * The symmetric signatures of Standard Webhooks (https://www.standardwebhooks.com): `v1,` and the base64 of an
 * HMAC-SHA-256 over `id.timestamp.body`, separated by spaces.
 */
import { createHmac, createSecretKey, type KeyObject, randomBytes } from 'node:crypto';
import { assert } from '../../shared/assert.ts';

const PREFIX = 'whsec_';
const SECRET_BYTES = 32;

export function newSecret(): string {
  return PREFIX + randomBytes(SECRET_BYTES).toString('base64');
}

/** A KeyObject: with a buffer each signature would take five times as long. */
export function signingKey(secret: string): KeyObject {
  assert(secret.startsWith(PREFIX), 'a webhook secret begins with whsec_');
  return createSecretKey(secret.slice(PREFIX.length), 'base64');
}

/** @param timestamp_s seconds since the epoch */
export function signature(keys: readonly KeyObject[], id: string, timestamp_s: number, body: string): string {
  const text = `${id}.${timestamp_s}.${body}`;
  return keys.map((key) => `v1,${createHmac('sha256', key).update(text).digest('base64')}`).join(' ');
}
