/**
 * Decides whether an HTTP request on a connection with secrets may be sent, and makes its header fields: each
 * placeholder that the guest has put there is replaced by the value of its secret, also inside of Basic credentials.
 */
import type { TLSSocket } from 'node:tls';
import type { GuestSecret } from '../protocol/egress-proxy-messages.ts';
import type { Semaphore } from '../shared/concurrency.ts';
import { sentName } from '../shared/egress-policy.ts';
import type { CheckedRequest } from '../shared/http-request.ts';
import { portOf } from './http-relay.ts';
import type { ProxiedGuest } from './proxied-guest.ts';
import type { ServerFailure } from './secret-server.ts';

export const HTTPS_PORT = 443;

/** One VM's use of what all share. */
export interface Use {
  connections: number;
  streams: number;
  readonly opening: Semaphore;
}

export interface Intercepted {
  readonly guest: ProxiedGuest;
  readonly name: string;
  readonly use: Use;
  /** The verified connection, for its first use. */
  readonly server: TLSSocket | ServerFailure;
  /** Makes another. @throws ServerFailure */
  readonly dial: () => Promise<TLSSocket>;
}

/** Why a request gets no value and no server. */
export interface RefusedRequest {
  readonly status: number;
  readonly said: string;
}

export const NOT_POSSIBLE = 'CONNECT and TRACE are not possible with a secret.';

/** The fields with values, or why the request is refused. */
export function fillRequest(
  { guest, name }: Intercepted,
  { method, checked }: { readonly method: string; readonly checked: CheckedRequest },
  fields: () => readonly string[],
): Replaced | RefusedRequest {
  // A server answers TRACE with the fields that it got.
  if (method === 'TRACE' || method === 'CONNECT') return { status: 405, said: NOT_POSSIBLE };
  if (sentName(checked.hostname) !== name || portOf(checked, HTTPS_PORT) !== HTTPS_PORT)
    return { status: 421, said: `This connection is for ${name}, and the request names another host.` };
  try {
    return replacePlaceholders(fields(), guest.secretsFor(name));
  } catch (error) {
    if (error instanceof TooLarge) return { status: 431, said: 'The header fields are too large.' };
    throw error;
  }
}

/** HTTP/3 passes by the proxy, with placeholders. */
export function passesToGuest(field: string): boolean {
  return field !== 'alt-svc';
}

/** `git` and `curl --user` send name and password so. */
const BASIC = /^(basic +)([A-Za-z0-9+/]+={0,2})( *)$/i;
/** A request's fields are bounded; with values in the place of placeholders they could become large. */
export const FIELDS_MAX_BYTES = 256 * 1024;

export class TooLarge extends Error {
  override name = 'TooLarge';
}

export interface Replaced {
  /** Names and values in turn. */
  readonly fields: string[];
  /** Names, in lower case, of those that have a value now. */
  readonly secret: ReadonlySet<string>;
}

/** `fields`: names and values in turn; bytes as Node has them, one character each. @throws TooLarge */
export function replacePlaceholders(
  fields: readonly string[],
  secrets: readonly Pick<GuestSecret, 'placeholder' | 'value'>[],
): Replaced {
  const values = secrets.map(({ placeholder, value }) => ({ placeholder, value: bytesOf(value) }));
  const secret = new Set<string>();
  const replaced: string[] = [];
  let bytes = 0;
  for (let at = 0; at < fields.length; at += 2) {
    const [name = '', before = ''] = [fields[at], fields[at + 1]];
    const after = replaceIn(before, values);
    if (after !== before) secret.add(name.toLowerCase());
    bytes += name.length + after.length;
    if (bytes > FIELDS_MAX_BYTES) throw new TooLarge('the header fields are too large');
    replaced.push(name, after);
  }
  return { fields: replaced, secret };
}

type Values = readonly { readonly placeholder: string; readonly value: string }[];

function replaceIn(text: string, values: Values): string {
  const basic = BASIC.exec(text);
  if (!basic) return replaceAll(text, values);
  const [, scheme = '', encoded = '', after = ''] = basic;
  const decoded = Buffer.from(encoded, 'base64').toString('latin1');
  const replaced = replaceAll(decoded, values);
  // Unchanged as it was sent, also where its base64 is unusual.
  return replaced === decoded
    ? text
    : `${scheme}${Buffer.from(replaced, 'latin1').toString('base64')}${after}`;
}

/** What a value brings in is not looked at again. */
function replaceAll(text: string, values: Values): string {
  const found = values.filter(({ placeholder }) => text.includes(placeholder));
  if (found.length === 0) return text;
  const by_placeholder = new Map(found.map(({ placeholder, value }) => [placeholder, value]));
  let size = text.length;
  return text.replace(new RegExp([...by_placeholder.keys()].join('|'), 'g'), (placeholder) => {
    const value = by_placeholder.get(placeholder) ?? '';
    size += value.length;
    if (size > FIELDS_MAX_BYTES) throw new TooLarge('the header fields are too large');
    return value;
  });
}

/** UTF-8, a character for each byte: Node writes header fields so. */
function bytesOf(value: string): string {
  return Buffer.from(value, 'utf8').toString('latin1');
}
