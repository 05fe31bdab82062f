/**
 * HTTP/2 from a guest to a server: each stream of the guest has one at the server, and the end of either session ends the other.
 * Node's http2 reads and writes the frames, with back pressure for each stream.
 */
import {
  type ClientHttp2Session,
  type ClientHttp2Stream,
  connect,
  constants,
  type IncomingHttpHeaders,
  type OutgoingHttpHeaders,
  type ServerHttp2Session,
  type ServerHttp2Stream,
  sensitiveHeaders,
} from 'node:http2';
import { AmbiguousRequest, asRecord, checkRequest, trailersOf } from '../../lib/http-request.ts';
import { passParts } from '../../lib/pass-parts.ts';
import { decide, type Intercepted, passesToGuest, type RefusedRequest } from './secret-request.ts';
import { ServerTrouble } from './secret-server.ts';

const STREAMS_OF_A_CONNECTION = 100;
/** Of one VM. */
const STREAMS_MAX = 256;
/** What a server may send ahead on one stream: it bounds throughput by distance, and the gate's memory. */
const WINDOW_BYTES = 512 * 1024;
const IDLE_MS = 5 * 60_000;

const {
  NGHTTP2_CANCEL,
  NGHTTP2_FLAG_END_STREAM,
  NGHTTP2_INTERNAL_ERROR,
  NGHTTP2_NO_ERROR,
  NGHTTP2_REFUSED_STREAM,
} = constants;

export const SESSION_OPTIONS = {
  allowHTTP1: false,
  settings: { maxConcurrentStreams: STREAMS_OF_A_CONNECTION, enableConnectProtocol: false },
};

export function relaySession(session: ServerHttp2Session, connection: Intercepted): void {
  const { use, server } = connection;
  session.on('error', () => session.destroy());
  const upstream = server instanceof ServerTrouble ? server : joinServer(session, connection, server);
  session.setTimeout(IDLE_MS, () => session.close());
  session.on('stream', (stream, _headers, _flags, raw) => {
    stream.on('error', () => undefined);
    if (use.streams >= STREAMS_MAX) return void stream.close(NGHTTP2_REFUSED_STREAM);
    use.streams += 1;
    stream.once('close', () => {
      use.streams -= 1;
    });
    relayStream(stream, raw as unknown as readonly string[], connection, upstream);
  });
}

function joinServer(
  session: ServerHttp2Session,
  { name }: Intercepted,
  server: NonNullable<Exclude<Intercepted['server'], ServerTrouble>>,
): ClientHttp2Session {
  const upstream = connect(`https://${name}`, {
    createConnection: () => server,
    settings: { enablePush: false, initialWindowSize: WINDOW_BYTES },
  });
  upstream.on('error', () => session.destroy());
  // No new requests; those under way go on.
  upstream.on('goaway', () => session.close());
  upstream.once('close', () => session.close());
  session.once('close', () => upstream.destroy());
  return upstream;
}

function relayStream(
  stream: ServerHttp2Stream,
  raw: readonly string[],
  connection: Intercepted,
  upstream: ClientHttp2Session | ServerTrouble,
): void {
  const headers = requestHeaders(raw, connection);
  if ('said' in headers) return void refuse(stream, headers);
  if (upstream instanceof ServerTrouble) return void refuse(stream, { status: 502, said: upstream.message });
  if (upstream.closed || upstream.destroyed) return void stream.close(NGHTTP2_REFUSED_STREAM);
  const { endAfterHeaders } = stream;
  try {
    join(
      stream,
      upstream.request(headers.outgoing, { endStream: endAfterHeaders, waitForTrailers: !endAfterHeaders }),
    );
  } catch {
    refuse(stream, { status: 400, said: 'The request has fields that cannot be passed on.' });
  }
}

/** The request's fields with values. Pure but for the VM's secrets. */
function requestHeaders(
  raw: readonly string[],
  connection: Intercepted,
): { readonly outgoing: OutgoingHttpHeaders } | RefusedRequest {
  const pseudo = new Map<string, string>();
  const fields: string[] = [];
  for (let at = 0; at < raw.length; at += 2) {
    const [name = '', value = ''] = [raw[at], raw[at + 1]];
    if (name.startsWith(':')) pseudo.set(name, value);
    else fields.push(name, value);
  }
  const method = pseudo.get(':method') ?? '';
  const target = pseudo.get(':path') ?? '';
  const authority = pseudo.get(':authority') ?? null;
  if (method === 'CONNECT' || pseudo.has(':protocol'))
    return { status: 405, said: 'CONNECT is not possible.' };
  if (pseudo.get(':scheme') !== 'https') return { status: 400, said: 'The scheme is not https.' };
  try {
    const checked = checkRequest({ method, target, version: '2.0', raw: fields, authority });
    const decided = decide(connection, { method, checked }, () => fields);
    if ('said' in decided) return decided;
    const outgoing: OutgoingHttpHeaders = {
      ...asRecord(decided.fields),
      ':method': method,
      ':scheme': 'https',
      ':authority': checked.host,
      ':path': target,
      // Never kept in a table of the compression.
      [sensitiveHeaders]: [...decided.secret],
    };
    delete outgoing['host'];
    return { outgoing };
  } catch (error) {
    if (error instanceof AmbiguousRequest)
      return { status: 400, said: `The request was refused: ${error.message}.` };
    throw error;
  }
}

function join(stream: ServerHttp2Stream, server: ClientHttp2Stream): void {
  let request_trailers: OutgoingHttpHeaders = {};
  let answer_trailers: OutgoingHttpHeaders = {};
  server.on('error', () => undefined);
  server.on('headers', (headers) => {
    if (!stream.headersSent && !stream.closed) stream.additionalHeaders(kept(headers));
  });
  server.once('response', (headers, flags) => {
    if (stream.closed) return;
    const endStream = (flags & NGHTTP2_FLAG_END_STREAM) !== 0;
    try {
      stream.respond(kept(headers), { endStream, waitForTrailers: !endStream, sendDate: false } as object);
    } catch {
      stream.close(NGHTTP2_INTERNAL_ERROR);
    }
  });
  stream.once('trailers', (headers) => {
    request_trailers = keptTrailers(headers);
  });
  server.once('trailers', (headers) => {
    answer_trailers = keptTrailers(headers);
  });
  stream.once('wantTrailers', () => stream.sendTrailers(answer_trailers));
  server.once('wantTrailers', () => server.sendTrailers(request_trailers));
  stream.once('close', () => {
    if (!server.closed) server.close(stream.rstCode === NGHTTP2_NO_ERROR ? NGHTTP2_CANCEL : stream.rstCode);
  });
  server.once('close', () => {
    stopBody();
    stream.resume();
    // A whole answer may still be on its way to the guest, with trailers.
    if (server.rstCode === NGHTTP2_NO_ERROR && server.readableEnded) return;
    if (!stream.closed) stream.close(server.rstCode || NGHTTP2_INTERNAL_ERROR);
  });
  const stopBody = passParts(stream, server);
  passParts(server, stream);
}

function kept(headers: IncomingHttpHeaders): OutgoingHttpHeaders {
  return Object.fromEntries(Object.entries(headers).filter(([name]) => passesToGuest(name)));
}

function keptTrailers(headers: IncomingHttpHeaders): OutgoingHttpHeaders {
  const raw = Object.entries(headers).flatMap(([name, value]) =>
    [value ?? []].flat().flatMap((each) => [name, each]),
  );
  return asRecord(trailersOf(raw).flat());
}

function refuse(stream: ServerHttp2Stream, { status, said }: RefusedRequest): void {
  if (stream.closed) return;
  stream.resume();
  stream.respond({ ':status': status, 'content-type': 'text/plain; charset=utf-8' });
  stream.end(`${said}\n`);
}
