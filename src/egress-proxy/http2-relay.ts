/**
 * Relays an HTTP/2 session of a guest to a server that a secret names, and puts the secrets into its requests. Each
 * stream of the guest has one stream at the server, and the end of either session ends the other. Node's http2 reads
 * and writes the frames, with back-pressure for each stream.
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
import { contain } from '../shared/contain.ts';
import {
  answerOf,
  expectsContinue,
  type ForeignHead,
  INTERIM_MAX,
  interimOf,
  type OurHead,
  trailersOf,
  unusable,
} from '../shared/http-answer.ts';
import { AmbiguousRequest, asRecord, checkRequest, filterFields } from '../shared/http-request.ts';
import { passParts } from '../shared/streams.ts';
import { fillRequest, type Intercepted, passesToGuest, type RefusedRequest } from './secret-request.ts';
import { ServerFailure } from './secret-server.ts';

const STREAMS_OF_A_CONNECTION = 100;
/** Of one VM. */
const STREAMS_MAX = 256;
/** What a server may send ahead on one stream: it bounds throughput by distance, and the proxy's memory. */
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
  const upstream = server instanceof ServerFailure ? server : joinServer(session, connection, server);
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
  server: NonNullable<Exclude<Intercepted['server'], ServerFailure>>,
): ClientHttp2Session {
  const upstream = contain(
    connect(`https://${name}`, {
      createConnection: () => server,
      settings: { enablePush: false, initialWindowSize: WINDOW_BYTES },
    }),
  );
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
  upstream: ClientHttp2Session | ServerFailure,
): void {
  const headers = requestHeaders(raw, connection);
  if ('said' in headers) return void refuse(stream, headers);
  if (upstream instanceof ServerFailure) return void refuse(stream, { status: 502, said: upstream.message });
  if (upstream.closed || upstream.destroyed) return void stream.close(NGHTTP2_REFUSED_STREAM);
  const { endAfterHeaders } = stream;
  try {
    const options = { endStream: endAfterHeaders, waitForTrailers: !endAfterHeaders };
    const server = contain(upstream.request(headers.outgoing, options));
    join(stream, server, {
      method: String(headers.outgoing[':method']),
      expects_continue: expectsContinue(raw),
    });
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
    const filled = fillRequest(connection, { method, checked }, () => fields);
    if ('said' in filled) return filled;
    const outgoing: OutgoingHttpHeaders = {
      ...asRecord(filled.fields),
      ':method': method,
      ':scheme': 'https',
      ':authority': checked.host,
      ':path': target,
      // Never kept in a table of the compression.
      [sensitiveHeaders]: [...filled.secret],
    };
    delete outgoing['host'];
    return { outgoing };
  } catch (error) {
    if (error instanceof AmbiguousRequest)
      return { status: 400, said: `The request was refused: ${error.message}.` };
    throw error;
  }
}

interface Asked {
  readonly method: string;
  readonly expects_continue: boolean;
}

function join(stream: ServerHttp2Stream, server: ClientHttp2Stream, asked: Asked): void {
  let request_trailers: OutgoingHttpHeaders = {};
  let answer_trailers: OutgoingHttpHeaders = {};
  let interim_answers = 0;
  /** The guest gets its whole answer, whatever the server's stream still does. */
  let is_whole = false;
  server.on('error', () => undefined);
  server.on('headers', (headers, _flags, raw) => {
    const ours = interimOf(headOf(headers, raw), asked);
    if (!ours || stream.headersSent || stream.closed || ++interim_answers > INTERIM_MAX) return;
    stream.additionalHeaders(outgoingOf(ours));
  });
  server.once('response', (headers, flags, raw) => {
    if (stream.closed) return;
    const ours = answerOf(headOf(headers, raw), asked.method);
    if ('problem' in ours) {
      is_whole = true;
      refuse(stream, { status: 502, said: unusable(ours) });
      return server.close(NGHTTP2_CANCEL);
    }
    const has_ended = (flags & NGHTTP2_FLAG_END_STREAM) !== 0;
    const endStream = has_ended || !ours.has_body;
    const options = { endStream, waitForTrailers: !endStream, sendDate: false };
    stream.respond(outgoingOf(ours), options as object);
    is_whole = endStream;
    if (!endStream) {
      server.once('end', () => {
        if (server.rstCode === NGHTTP2_NO_ERROR) stream.end();
      });
      passParts(server, stream, { end: false });
    }
    if (has_ended) server.resume();
    else if (endStream) server.close(NGHTTP2_CANCEL);
  });
  stream.once('trailers', (_headers, _flags, raw) => {
    request_trailers = asRecord(trailersOf(raw ?? []));
  });
  server.once('trailers', (_headers, _flags, raw) => {
    answer_trailers = asRecord(trailersOf(raw ?? []));
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
    if (is_whole || (server.rstCode === NGHTTP2_NO_ERROR && server.readableEnded)) return;
    if (!stream.closed) stream.close(server.rstCode || NGHTTP2_INTERNAL_ERROR);
  });
  // A side that is reset ends, too. The other must see it cut.
  stream.once('end', () => {
    if (!stream.aborted) server.end();
  });
  const stopBody = passParts(stream, server, { end: false });
}

function headOf(headers: IncomingHttpHeaders, raw: readonly string[] = []): ForeignHead {
  return { statusCode: Number(headers[':status']), rawHeaders: raw };
}

function outgoingOf({ status, fields }: Omit<OurHead, 'reason'>): OutgoingHttpHeaders {
  return { ...asRecord(filterFields(fields, passesToGuest)), ':status': status };
}

function refuse(stream: ServerHttp2Stream, { status, said }: RefusedRequest): void {
  if (stream.closed || stream.headersSent) return;
  stream.resume();
  stream.respond({ ':status': status, 'content-type': 'text/plain; charset=utf-8' });
  stream.end(`${said}\n`);
}
