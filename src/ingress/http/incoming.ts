/**
 * Reads and checks one request of a client, by HTTP/1.1 or HTTP/2 (`readIncoming`), and decides which header fields
 * pass to the guest and back to the client.
 *
 * Invariants:
 * - A guest gets neither credentials nor cookies that are Berth's.
 * - Only Berth sets `Forwarded` and `X-Forwarded-*`.
 * - Hop-by-hop fields (RFC 9110, 7.6.1) are not passed on.
 * - A guest sets cookies only for its own hostname, and none with a name of Berth's cookies.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Http2ServerRequest } from 'node:http2';
import { isIP } from 'node:net';
import type { TLSSocket } from 'node:tls';
import { plainAddress } from '../../shared/connection-budget.ts';
import {
  AmbiguousRequest,
  type CheckedRequest,
  checkRequest,
  filterFields,
  HOP_BY_HOP,
  type RequestHead,
  tokensOf,
  valuesOf,
} from '../../shared/http-request.ts';
import type { TrustedProxies } from '../../shared/networks.ts';
import { ambiguous } from './refusal.ts';

/** Browsers send the value of a cookie without a name as if it were a pair. */
const BERTHS_COOKIE = /^[\s=]*(?:__Host-|__Secure-)?berth[-_]/i;
const BERTHS_BEARER = /^bearer\s+(berth_\S+)\s*$/i;
/** Also where it is written in another way, and so lets nobody in. */
const BERTHS_TOKEN = /\bberth_/i;

export interface Client {
  readonly address: string;
  readonly scheme: 'http' | 'https';
  readonly host: string;
}

/** The fields of a request for the guest, names and values by turns. `framing` replaces those that say where the body ends. */
export function fieldsForGuest(raw: readonly string[], client: Client, framing: readonly string[]): string[] {
  const named = new Set(tokensOf(raw, 'connection'));
  const fields = ['Host', client.host];
  const cookies: string[] = [];
  for (let at = 0; at < raw.length; at += 2) {
    const [name = '', value = ''] = [raw[at], raw[at + 1]];
    const lower = name.toLowerCase();
    if (HOP_BY_HOP.has(lower) || named.has(lower) || isForwarding(lower)) continue;
    if (lower === 'host' || lower === 'content-length') continue;
    if (lower === 'authorization' && BERTHS_TOKEN.test(value)) continue;
    if (lower === 'cookie') {
      cookies.push(...value.split(';').map((each) => each.trim()));
      continue;
    }
    fields.push(name, value);
  }
  const theirs = cookies.filter((each) => each !== '' && !BERTHS_COOKIE.test(each));
  if (theirs.length > 0) fields.push('Cookie', theirs.join('; '));
  if (tokensOf(raw, 'te').includes('trailers')) fields.push('TE', 'trailers');
  return [...fields, ...forwarded(client), ...framing];
}

/** Also with underscores, which some servers take for hyphens. */
function isForwarding(lower: string): boolean {
  const name = lower.replaceAll('_', '-');
  return name === 'forwarded' || name.startsWith('x-forwarded-') || name === 'x-real-ip';
}

function forwarded({ address, scheme, host }: Client): string[] {
  const node = address.includes(':') ? `"[${address}]"` : address;
  return [
    ...['X-Forwarded-For', address, 'X-Forwarded-Proto', scheme, 'X-Forwarded-Host', host],
    ...['Forwarded', `for=${node};host="${host}";proto=${scheme}`],
  ];
}

/** Those of a guest's response that may pass, of the fields that http-answer.ts has let through. */
export function fieldsForClient(cleaned: readonly string[]): string[] {
  const fields: string[] = [];
  for (let at = 0; at < cleaned.length; at += 2) {
    const [name = '', value = ''] = [cleaned[at], cleaned[at + 1]];
    const lower = name.toLowerCase();
    if (lower === 'set-cookie') {
      const cookie = ownCookie(value);
      if (cookie !== null) fields.push(name, cookie);
      continue;
    }
    // It would clear the cookies of other hostnames of the domain.
    if (lower === 'clear-site-data' && /cookies|\*/i.test(value)) continue;
    fields.push(name, value);
  }
  return fields;
}

/** Without its Domain, so that the browser keeps the cookie for this hostname alone. Null: it would replace one of Berth's. */
function ownCookie(value: string): string | null {
  const [pair = '', ...attributes] = value.split(';');
  if (BERTHS_COOKIE.test(pair)) return null;
  const kept = attributes.filter((each) => !/^\s*domain\s*(=|$)/i.test(each));
  return kept.length === attributes.length ? value : [pair, ...kept].join(';');
}

/** Of trailers, without what only Berth tells. */
export function passedTrailers(trailers: readonly string[]): string[] {
  return filterFields(trailers, (name) => !isForwarding(name));
}

export interface PortCredential {
  /** A bearer token that is Berth's. */
  readonly bearer: string | null;
  readonly cookie: string | null;
}

/** Berth's credentials of a request. A cookie that was sent twice counts as none. */
export function credentialOf(
  headers: { readonly authorization?: string | undefined; readonly cookie?: string | undefined },
  secure: boolean,
): PortCredential {
  const name = cookieName(secure);
  const values = (headers.cookie ?? '')
    .split(';')
    .map((each) => each.trim())
    .filter((each) => each.startsWith(`${name}=`))
    .map((each) => each.slice(name.length + 1));
  const [cookie] = values;
  return {
    bearer: BERTHS_BEARER.exec(headers.authorization ?? '')?.[1]?.slice(0, 512) ?? null,
    cookie: values.length === 1 && cookie ? cookie.slice(0, 512) : null,
  };
}

/** Browsers keep a `__Host-` cookie for exactly one hostname, and only from https. */
export function cookieName(secure: boolean): string {
  return secure ? '__Host-berth-port' : 'berth-port';
}

export interface Incoming {
  readonly request: IncomingMessage;
  readonly method: string;
  readonly target: string;
  /** Without the pseudo-fields of HTTP/2. */
  readonly raw: readonly string[];
  readonly checked: CheckedRequest;
  readonly client: Client;
  readonly credential: PortCredential;
}

/** Where answers to a request go; an upgrade has none. */
export interface Answering extends Incoming {
  readonly response: ServerResponse;
}

export interface ReadingOptions {
  /** Browsers see https. */
  readonly secure: boolean;
  readonly trusted: TrustedProxies;
}

/** @throws Refusal 400 */
export function readIncoming(
  request: IncomingMessage,
  { secure, trusted }: ReadingOptions,
  as: { readonly method?: string } = {},
): Incoming {
  const method = as.method ?? request.method ?? '';
  const target = request.url ?? '';
  const { raw, authority } = splitFields(request.rawHeaders);
  const checked = checkedOrRefused({ method, target, version: request.httpVersion, raw, authority });
  const stream = (request as unknown as Http2ServerRequest).stream;
  // In HTTP/2 a body needs no field.
  const body =
    request.httpVersion === '2.0' && checked.body === 'none' && !stream.endAfterHeaders
      ? 'chunks'
      : checked.body;
  return {
    ...{ request, method, target, raw },
    checked: { ...checked, body },
    client: clientOf(request, raw, { host: checked.host, trusted }),
    credential: credentialOf(
      { authorization: valuesOf(raw, 'authorization')[0], cookie: valuesOf(raw, 'cookie').join('; ') },
      secure,
    ),
  };
}

/** @throws Refusal 400 */
function checkedOrRefused(head: RequestHead): CheckedRequest {
  try {
    return checkRequest(head);
  } catch (error) {
    if (error instanceof AmbiguousRequest) throw ambiguous(error.message);
    throw error;
  }
}

function splitFields(raw_headers: readonly string[]): { raw: string[]; authority: string | null } {
  const raw: string[] = [];
  let authority: string | null = null;
  for (let at = 0; at < raw_headers.length; at += 2) {
    const [name = '', value = ''] = [raw_headers[at], raw_headers[at + 1]];
    if (name === ':authority') authority = value;
    if (!name.startsWith(':')) raw.push(name, value);
  }
  return { raw, authority };
}

function clientOf(
  { socket }: IncomingMessage,
  raw: readonly string[],
  { host, trusted }: { readonly host: string; readonly trusted: TrustedProxies },
): Client {
  const peer = plainAddress(socket.remoteAddress ?? '0.0.0.0');
  const scheme = (socket as TLSSocket).encrypted ? 'https' : 'http';
  if (!trusted.has(peer)) return { address: peer, scheme, host };
  const [proto] = valuesOf(raw, 'x-forwarded-proto');
  const hops = valuesOf(raw, 'x-forwarded-for')
    .flatMap((each) => each.split(','))
    .map((each) => plainAddress(each.trim()))
    .reverse();
  const found = hops.find((each) => !trusted.has(each)) ?? peer;
  return {
    address: isIP(found) === 0 ? peer : found,
    scheme: proto === 'https' || proto === 'http' ? proto : scheme,
    host,
  };
}
