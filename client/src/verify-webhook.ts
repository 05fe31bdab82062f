/** Verifies that a webhook comes from Berth, by the Standard Webhooks specification, version 1. */
import { WebhookVerificationError } from './errors.ts';
import type { EventType } from './generated.ts';

export interface WebhookMessage {
  /** The same at every attempt. Store the ids of processed messages, to recognise repeated ones. */
  readonly id: string;
  readonly type: EventType;
  readonly timestamp: string;
  // biome-ignore lint/suspicious/noExplicitAny: the resource that it is about
  readonly data: any;
}

export interface VerifyOptions {
  /** The allowed difference of a message's time from now. Default 300. */
  readonly tolerance_seconds?: number;
  /** The current time, in milliseconds since 1970. */
  readonly now?: () => number;
}

type Headers_ =
  | { get(name: string): string | null }
  | Readonly<Record<string, string | readonly string[] | undefined>>;

/**
 * Returns the message if its signature matches one of the secrets (`whsec_…`; several while one is being replaced).
 * @param body the received bytes, unchanged: parsing and serialising could change them
 * @throws WebhookVerificationError
 */
export async function verifyWebhook(
  secrets: string | readonly string[],
  headers: Headers_,
  body: string | Uint8Array,
  { tolerance_seconds = 300, now = Date.now }: VerifyOptions = {},
): Promise<WebhookMessage> {
  const id = headerOf(headers, 'webhook-id');
  const timestamp = headerOf(headers, 'webhook-timestamp');
  const signatures = headerOf(headers, 'webhook-signature');
  if (!/^\d{1,15}$/.test(timestamp)) throw new WebhookVerificationError('webhook-timestamp is not a time');
  const age_seconds = Math.abs(now() / 1_000 - Number(timestamp));
  if (age_seconds > tolerance_seconds) {
    throw new WebhookVerificationError(`the message is ${Math.round(age_seconds)} s away from now`);
  }
  const text = typeof body === 'string' ? body : new TextDecoder().decode(body);
  const bytes = typeof body === 'string' ? new TextEncoder().encode(body) : body;
  const head = new TextEncoder().encode(`${id}.${timestamp}.`);
  const signed = new Uint8Array(head.length + bytes.length);
  signed.set(head);
  signed.set(bytes, head.length);
  const given = signatures
    .split(' ')
    .slice(0, 16)
    .flatMap((each) => (each.startsWith('v1,') ? (bytesOf(each.slice(3)) ?? []) : []));
  for (const secret of typeof secrets === 'string' ? [secrets] : secrets) {
    const key = await keyOf(secret);
    for (const signature of given) {
      // The Web Cryptography API compares in constant time.
      if (await crypto.subtle.verify('HMAC', key, signature, signed)) {
        return { ...(JSON.parse(text) as Omit<WebhookMessage, 'id'>), id };
      }
    }
  }
  throw new WebhookVerificationError('no signature fits');
}

async function keyOf(secret: string) {
  const bytes = bytesOf(secret.replace(/^whsec_/, ''));
  if (bytes === undefined || bytes.length < 16) throw new TypeError('a secret looks like whsec_…');
  return crypto.subtle.importKey('raw', bytes, { name: 'HMAC', hash: 'SHA-256' }, false, ['verify']);
}

function headerOf(headers: Headers_, name: string): string {
  const value =
    typeof headers['get'] === 'function' ? headers['get'](name) : (headers as Record<string, unknown>)[name];
  if (typeof value !== 'string' || value === '') throw new WebhookVerificationError(`${name} is missing`);
  return value;
}

function bytesOf(base64: string): Uint8Array<ArrayBuffer> | undefined {
  try {
    return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  } catch {
    return undefined;
  }
}
