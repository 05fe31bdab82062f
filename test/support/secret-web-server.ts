/**
 * The HTTPS servers to which guests send secrets: `secret-web-server.ts FOLDER` serves HTTP/1.1 and HTTP/2 on port
 * 8444. Each name has its certificate in FOLDER/NAME.json. The program prints every part of each request that it got,
 * as a line of JSON.
 */
import { readdirSync, readFileSync } from 'node:fs';
import type { IncomingMessage } from 'node:http';
import { createSecureServer, type Http2ServerRequest, type Http2ServerResponse } from 'node:http2';
import { join } from 'node:path';
import type { Duplex } from 'node:stream';
import { createSecureContext, type SecureContext, type TLSSocket } from 'node:tls';

const [, , folder = ''] = process.argv;
const contexts = new Map<string, SecureContext>();
for (const file of readdirSync(folder)) {
  if (!file.endsWith('.json')) continue;
  const { key, cert } = JSON.parse(readFileSync(join(folder, file), 'utf8')) as { key: string; cert: string };
  contexts.set(file.slice(0, -5), createSecureContext({ key, cert }));
}
const usual = contexts.get('api.test');

interface Got {
  sni: string;
  version: string;
  method: string;
  url: string;
  headers: readonly string[];
  body: string;
  trailers: readonly string[];
}
/** A benchmark does not read them. */
const is_quiet = process.env['QUIET'] === '1';
const tell = (got: Got) =>
  is_quiet && got.method !== 'READY' ? true : process.stdout.write(`${JSON.stringify(got)}\n`);

type Request = IncomingMessage | Http2ServerRequest;
/** To HTTP/1.1 it is a `ServerResponse`, which has all that is called here. */
type Response = Http2ServerResponse;

const sniOf = (request: Request) => {
  const session = 'stream' in request ? request.stream.session : undefined;
  const socket = (session?.socket ?? request.socket) as TLSSocket;
  return String(socket.servername || '');
};

async function read(request: Request): Promise<Got> {
  const parts: Buffer[] = [];
  for await (const part of request) parts.push(part as Buffer);
  const { httpVersion, method = '', url = '', rawHeaders, rawTrailers } = request;
  const body = Buffer.concat(parts);
  const said = body.length > 10_000 ? `${body.length} bytes` : body.toString('latin1');
  return {
    sni: sniOf(request),
    version: httpVersion,
    method,
    url,
    headers: rawHeaders,
    body: said,
    trailers: rawTrailers,
  };
}

async function serve(request: Request, response: Response): Promise<void> {
  const path = new URL(request.url ?? '/', 'https://x').pathname;
  if (path === '/held') {
    // The answer comes before the request's body.
    response.writeHead(200);
    response.write('held\n');
    request.once('close', () => tell({ ...EMPTY, method: 'CLOSED', url: '/held' }));
    request.resume();
    return;
  }
  const got = await read(request);
  tell(got);
  if (path === '/events') return events(response);
  if (path === '/big')
    return void big(response, Number(new URL(request.url ?? '', 'https://x').searchParams.get('mib')));
  if (path === '/redirect') return void response.writeHead(302, { Location: 'https://evil.test/' }).end();
  if (path === '/nothing') return void response.writeHead(304, { ETag: '"1"' }).end();
  if (path === '/hints') response.writeEarlyHints({ link: '</a.css>; rel=preload' });
  if (path.startsWith('/repo.git/')) return repository(got, path, response);
  const fields = { 'Content-Type': 'text/plain', 'Alt-Svc': 'h3=":443"', 'X-Name': 'Ã©' };
  if (request.method === 'HEAD') return void response.writeHead(200, fields).end();
  response.writeHead(200, { ...fields, Trailer: 'X-Sum' });
  response.write(`${got.version} ${got.method} ${got.body.length}\n`);
  response.addTrailers({ 'X-Sum': String(got.body.length) });
  response.end();
}

const EMPTY: Got = { sni: '', version: '', method: '', url: '', headers: [], body: '', trailers: [] };

/** Each event is sent when the client has asked for it by another request. */
const waiting: Response[] = [];
function events(response: Response): void {
  response.writeHead(200, { 'Content-Type': 'text/event-stream' });
  response.write('data: 1\n\n');
  waiting.push(response);
}

async function big(response: Response, mib: number): Promise<void> {
  response.writeHead(200, { 'Content-Length': String(mib * 2 ** 20) });
  const part = Buffer.alloc(2 ** 16, 'x');
  for (let sent = 0; sent < mib * 16; sent++) {
    if (!response.write(part)) await new Promise((resolve) => response.once('drain', resolve));
  }
  response.end();
}

/** By git's plain protocol, with a name and a password. */
function repository({ headers }: Got, path: string, response: Response): void {
  const at = headers.findIndex((name, index) => index % 2 === 0 && name.toLowerCase() === 'authorization');
  const given = Buffer.from(/^Basic (.*)$/.exec(headers[at + 1] ?? '')?.[1] ?? '', 'base64').toString('utf8');
  if (at < 0 || given !== `user:${process.env['GIT_PASSWORD']}`)
    return void response.writeHead(401, { 'WWW-Authenticate': 'Basic realm="git"' }).end();
  try {
    response.end(readFileSync(join(folder, path)));
  } catch {
    response.writeHead(404).end();
  }
}

const server = createSecureServer({
  allowHTTP1: true,
  ...(process.env['ONLY_HTTP1'] ? { ALPNProtocols: ['http/1.1'] } : {}),
  SNICallback: (name, done) => done(null, contexts.get(name) ?? usual),
});
server.on('request', (request, response) => {
  const path = request.url ?? '';
  if (path === '/next') for (const each of waiting.splice(0)) each.end('data: 2\n\n');
  void serve(request, response).catch(() => undefined);
});
server.on('checkContinue', (request, response) => {
  response.writeContinue();
  void serve(request, response).catch(() => undefined);
});
server.on('upgrade', (request: IncomingMessage, socket: Duplex) => {
  const { httpVersion, method = '', url = '', rawHeaders } = request;
  tell({ ...EMPTY, sni: sniOf(request), version: httpVersion, method, url, headers: rawHeaders });
  socket.write('HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nfirst');
  socket.on('error', () => socket.destroy());
  socket.pipe(socket);
});
server.on('sessionError', () => undefined);
server.on('tlsClientError', () => undefined);
server.on('clientError', (_error, socket) => socket.destroy());
server.listen(8_444, '0.0.0.0', () => tell({ ...EMPTY, method: 'READY' }));
