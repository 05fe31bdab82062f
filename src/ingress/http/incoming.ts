/** One request of a client, by HTTP/1.1 or HTTP/2, read and checked. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Http2ServerRequest } from 'node:http2';
import { isIP } from 'node:net';
import type { TLSSocket } from 'node:tls';
import { plainAddress } from '../../shared/connection-budget.ts';
import {
  AmbiguousRequest,
  type CheckedRequest,
  checkRequest,
  type RequestHead,
  valuesOf,
} from '../../shared/http-request.ts';
import type { TrustedProxies } from '../../shared/networks.ts';
import { type Client, type Credential, credentialOf } from './fields.ts';
import { ambiguous } from './refusal.ts';

export interface Incoming {
  readonly request: IncomingMessage;
  readonly method: string;
  readonly target: string;
  /** Without the pseudo-fields of HTTP/2. */
  readonly raw: readonly string[];
  readonly checked: CheckedRequest;
  readonly client: Client;
  readonly credential: Credential;
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
