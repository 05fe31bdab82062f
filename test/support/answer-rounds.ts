/**
 * Sends hostile answers (hostile-answers.ts) through the real relays: ingress, egress proxy and E2B adapter. A client
 * sends a request, and a server gives the hostile answer. The client must get an answer that it can read, or see that
 * the connection was cut. Each relay also carries the connection of a bystander, which must survive each answer.
 */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import {
  Agent,
  type ClientRequest,
  createServer as createHttp,
  type IncomingMessage,
  request as sendRequest,
} from 'node:http';
import {
  type ClientHttp2Session,
  connect as connectHttp2,
  constants,
  createServer as createHttp2,
  type IncomingHttpHeaders,
  type OutgoingHttpHeaders,
  type ServerHttp2Stream,
} from 'node:http2';
import { connect, createServer as createTcp, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Duplex } from 'node:stream';
import { connect as connectTls, createServer as createTls, type TLSSocket } from 'node:tls';
import { WebSocketServer } from 'ws';
import { Adapter } from '../../adapters/e2b/src/adapter-server.ts';
import { makeAuthority } from '../../src/control-plane/secrets/make-authority.ts';
import { HttpHandler } from '../../src/egress-proxy/http-handler.ts';
import { NameResolver } from '../../src/egress-proxy/name-resolver.ts';
import { ProxiedGuest } from '../../src/egress-proxy/proxied-guest.ts';
import { SecretHandler } from '../../src/egress-proxy/secret-handler.ts';
import { TrustedRoots } from '../../src/egress-proxy/secret-server.ts';
import { TlsContexts } from '../../src/egress-proxy/tls-contexts.ts';
import { passTls } from '../../src/egress-proxy/tls-handler.ts';
import { CertificateSource, fingerprintOfAuthority } from '../../src/host/egress/certificate-source.ts';
import { Denials } from '../../src/protocol/denials.ts';
import { contain } from '../../src/shared/contain.ts';
import { messageOf } from '../../src/shared/errors.ts';
import {
  asHttp1,
  asHttp2,
  type HostileAnswer,
  isCutInBody,
  KINDS,
  KNOWN_ANSWERS,
  randomAnswer,
} from './hostile-answers.ts';
import { NAME, proxyTo } from './http-ingress.ts';
import { seededRandom } from './seeded-random.ts';
import { HOST, listen } from './sockets.ts';
import { serverCertificate } from './test-certificates.ts';
import { until } from './waiting.ts';

const PATIENCE_MS = 60_000;

/** What a client saw of an answer. Status 0: it was cut before its head. */
interface Seen {
  readonly status: number;
  /** Nothing says that something is missing. */
  readonly whole: boolean;
  readonly raw: readonly string[];
}

/** One connection or session of a client through a relay. */
interface Client {
  ask(answer: HostileAnswer): Promise<Seen>;
  close(): void;
}

export interface Relay {
  readonly name: string;
  client(at: number): Client;
  /** A request whose answer repeats what its body says, line by line. */
  bystander(): Promise<Bystander>;
  /** The bystanders' requests at their server. */
  readonly echoed: Echoed;
}

interface Echoed {
  open: number;
  /** Those whose body looked whole. */
  whole: number;
}

export type CleanUp = { after(then: () => void | Promise<void>): void };

class Bystander {
  readonly #stream: Duplex;
  readonly #cut: Duplex;
  #heard = '';
  #said = 0;
  #wake = () => {};
  #ended = false;

  /** `cut`: what is destroyed to end it in the middle of its body. Node's HTTP/2 sends an end before it cancels a stream. */
  constructor(stream: Duplex, cut: Duplex = stream) {
    this.#stream = stream;
    this.#cut = cut;
    stream.on('error', () => undefined);
    stream.on('data', (data: Buffer) => {
      this.#heard += String(data);
      this.#wake();
    });
    stream.once('close', () => {
      this.#ended = true;
      this.#wake();
    });
  }

  /** Fails if its connection has ended. */
  async goesOn(): Promise<void> {
    const word = `${++this.#said}\n`;
    this.#stream.write(word);
    await within('the bystander is answered', async () => {
      while (!this.#heard.endsWith(word)) {
        assert.ok(!this.#ended, "the bystander's connection ended");
        await new Promise<void>((resolve) => {
          this.#wake = resolve;
        });
      }
    });
    this.#heard = '';
  }

  close(): void {
    this.#cut.destroy();
  }
}

async function within<T>(what: string, work: () => Promise<T>): Promise<T> {
  const { promise, reject } = Promise.withResolvers<never>();
  const late = setTimeout(() => reject(new Error(`not within ${PATIENCE_MS} ms: ${what}`)), PATIENCE_MS);
  try {
    return await Promise.race([work(), promise]);
  } finally {
    clearTimeout(late);
  }
}

/** Sends one hostile answer, and checks what its client sees. */
async function checkAnswer(client: Client, answer: HostileAnswer): Promise<number> {
  const { status, raw, whole } = await within('the client sees an end', () => client.ask(answer));
  const asked_upgrade = answer.kind === 'upgrade' && status === 101;
  assert.ok(status === 0 || asked_upgrade || (status >= 200 && status <= 599), `the status is ${status}`);
  const names = raw.filter((_, at) => at % 2 === 0).map((name) => name.toLowerCase());
  for (const name of ['http2-settings', 'proxy-authenticate', 'te', 'proxy-connection'])
    assert.ok(!names.includes(name), `the answer has the field ${name}`);
  assert.ok(names.filter((name) => name === 'etag').length < 2, 'ETag is there twice');
  if (status > 0 && status !== 502) assert.ok(!(whole && isCutInBody(answer)), 'a cut answer looks whole');
  return status;
}

export interface Rounds {
  readonly answers: number;
  readonly seed: number;
  /** At a time. */
  readonly clients: number;
}

/**
 * The known answers, then random ones. Answer N of a seed is always the same. How often clients saw which status. @throws with the answer that broke
 * the promise
 */
export async function runAnswers(relay: Relay, { answers, seed, clients }: Rounds): Promise<string> {
  const seen = new Map<number, number>();
  const known = Object.entries(KNOWN_ANSWERS);
  let next = 0;
  const work = async (at: number) => {
    const bystander = await relay.bystander();
    const client = relay.client(at);
    while (next < answers) {
      const number = next++;
      const kind = KINDS[number % KINDS.length] ?? 'answer';
      const answer = known[number]?.[1] ?? randomAnswer(kind, seededRandom(seed * 1_000_003 + number));
      try {
        const status = await checkAnswer(client, answer);
        seen.set(status, (seen.get(status) ?? 0) + 1);
        await bystander.goesOn();
      } catch (cause) {
        const what = known[number]?.[0] ?? JSON.stringify({ ...answer, body: answer.body.slice(0, 40) });
        throw new Error(`${relay.name}, seed ${seed}, answer ${number}: ${what}: ${messageOf(cause)}`, {
          cause,
        });
      }
    }
    client.close();
    bystander.close();
  };
  await Promise.all(Array.from({ length: clients }, (_, at) => work(at)));
  await until("the bystanders' requests have ended", () => relay.echoed.open === 0);
  assert.equal(relay.echoed.whole, 0, 'a body that its client has cut looks whole');
  const counts = [...seen].sort(([one], [other]) => one - other);
  return counts.map(([status, count]) => `${status || 'cut'} ${count}`).join(', ');
}

/** A server by HTTP/1.1 that answers the path of each question as it was told to, and `/echo` by the body of the request. */
async function hostileServer(t: CleanUp) {
  const answers = new Map<string, HostileAnswer>();
  const sockets = new Set<Socket>();
  const echoed: Echoed = { open: 0, whole: 0 };
  const echo = createHttp((request, response) => {
    countBody(request, echoed);
    response.flushHeaders();
    request.on('error', () => undefined).pipe(response);
  });
  const server = createTcp((socket) => {
    sockets.add(socket);
    socket.once('close', () => sockets.delete(socket)).on('error', () => socket.destroy());
    let heard = Buffer.alloc(0);
    const hear = (data: Buffer) => {
      heard = Buffer.concat([heard, data]);
      if (!heard.includes('\r\n\r\n')) return;
      socket.off('data', hear);
      const path = /^\S+ (\S+)/.exec(heard.toString('latin1'))?.[1] ?? '';
      const answer = answers.get(path);
      if (answer) return void send(socket, answer);
      // Of a client that has left.
      if (path !== '/echo') return void socket.destroy();
      socket.pause();
      socket.unshift(heard);
      echo.emit('connection', socket);
      socket.resume();
    };
    socket.on('data', hear);
  });
  const port = await listen(server);
  t.after(() => {
    for (const each of sockets) each.destroy();
    server.close();
  });
  let count = 0;
  /** A path that is answered so until `done`. */
  const offer = (answer: HostileAnswer) => {
    const path = `/${++count}`;
    answers.set(path, answer);
    return { path, done: () => answers.delete(path) };
  };
  return { port, offer, echoed };
}

function countBody(body: IncomingMessage | ServerHttp2Stream, echoed: Echoed): void {
  echoed.open += 1;
  body.once('end', () => {
    if (!body.aborted) echoed.whole += 1;
  });
  body.once('close', () => {
    echoed.open -= 1;
  });
}

function send(socket: Socket, answer: HostileAnswer): void {
  socket.resume();
  socket.write(asHttp1(answer), () => (answer.ends === 'reset' ? socket.resetAndDestroy() : socket.end()));
}

type Hostile = Awaited<ReturnType<typeof hostileServer>>;

const HANDSHAKE = {
  Connection: 'Upgrade',
  Upgrade: 'websocket',
  'Sec-WebSocket-Key': 'AAAAAAAAAAAAAAAAAAAAAA==',
  'Sec-WebSocket-Version': '13',
};

function byHttp1(port: number, host: string, hostile: Hostile): Client {
  const agent = new Agent({ keepAlive: true, maxSockets: 1 });
  return {
    async ask(answer) {
      const { path, done } = hostile.offer(answer);
      const headers = { Host: host, ...(answer.kind === 'upgrade' ? HANDSHAKE : {}) };
      try {
        return await seenOf(sendRequest({ host: HOST, port, path, headers, agent }), answer);
      } finally {
        done();
      }
    },
    close: () => agent.destroy(),
  };
}

/** @throws when the answer cannot be read */
async function seenOf(request: ClientRequest, { client_leaves }: HostileAnswer): Promise<Seen> {
  const { promise, resolve, reject } = Promise.withResolvers<Seen>();
  let seen: Seen = { status: 0, raw: [], whole: false };
  const see = ({ statusCode = 0, rawHeaders }: IncomingMessage) => {
    seen = { status: statusCode, raw: rawHeaders, whole: false };
    if (client_leaves === 'at head') request.destroy();
  };
  if (typeof client_leaves === 'number') setTimeout(() => request.destroy(), client_leaves);
  request.on('error', (error: NodeJS.ErrnoException) => {
    if (error.code?.startsWith('HPE_') && error.code !== 'HPE_INVALID_EOF_STATE') reject(error);
    else resolve(seen);
  });
  request.once('close', () => resolve(seen));
  request.once('response', (answer) => {
    see(answer);
    answer.on('error', () => undefined).resume();
    answer.once('end', () => {
      seen = { ...seen, whole: answer.complete };
    });
  });
  request.once('upgrade', (answer, socket) => {
    see(answer);
    socket.on('error', () => undefined);
    socket.once('close', () => resolve(seen));
    if (client_leaves !== null) socket.destroy();
    socket.resume();
    socket.end('x');
  });
  request.end();
  return promise;
}

/** Its session may end when `ends` says so, as that of a proxy does with its server's. */
function byHttp2(
  socket: () => Duplex,
  headers: OutgoingHttpHeaders,
  {
    offer,
    ends,
  }: {
    readonly offer: (answer: HostileAnswer) => { path: string; done: () => void };
    readonly ends: boolean;
  },
): Client {
  let session: ClientHttp2Session | null = null;
  return {
    async ask(answer) {
      assert.ok(
        session === null || ends || !(session.closed || session.destroyed),
        'a stream has ended its session',
      );
      if (session === null || session.closed || session.destroyed) {
        session = sessionOn(socket(), headers);
        session.on('error', () => undefined);
        await Promise.race([once(session, 'remoteSettings'), once(session, 'close')]).catch(() => undefined);
      }
      const { path, done } = offer(answer);
      const is_upgrade = answer.kind === 'upgrade' && !ends;
      const method = is_upgrade ? { ':method': 'CONNECT', ':protocol': 'websocket', ':scheme': 'http' } : {};
      const { promise, resolve } = Promise.withResolvers<Seen>();
      const { client_leaves } = answer;
      let seen: Seen = { status: 0, raw: [], whole: false };
      const stream = session.request({ ...headers, ...method, ':path': path }, { endStream: !is_upgrade });
      stream.on('error', () => undefined);
      stream.once('response', (fields: IncomingHttpHeaders, _flags, raw?: string[]) => {
        seen = { status: Number(fields[':status']), raw: raw ?? [], whole: false };
        if (is_upgrade) stream.end('x');
        if (client_leaves === 'at head') stream.close(constants.NGHTTP2_CANCEL);
      });
      stream.once('close', () => resolve({ ...seen, whole: stream.readableEnded && stream.rstCode === 0 }));
      if (typeof client_leaves === 'number')
        setTimeout(() => stream.close(constants.NGHTTP2_CANCEL), client_leaves);
      stream.resume();
      return promise.finally(done);
    },
    close: () => session?.destroy(),
  };
}

function sessionOn(socket: Duplex, headers: OutgoingHttpHeaders): ClientHttp2Session {
  return connectHttp2(`http://${headers[':authority']}`, { createConnection: () => socket });
}

async function echoByHttp1(port: number, host: string): Promise<Bystander> {
  const request = sendRequest({ host: HOST, port, path: '/echo', method: 'POST', headers: { Host: host } });
  // Some relays wait for the first bytes of a body.
  request.write('begin\n');
  const [answer] = (await once(request, 'response')) as [IncomingMessage];
  return new Bystander(Duplex.from({ readable: answer, writable: request }));
}

async function echoByHttp2(socket: Duplex, headers: OutgoingHttpHeaders): Promise<Bystander> {
  const session = sessionOn(socket, headers);
  session.on('error', () => undefined);
  const stream = session.request({ ...headers, ':method': 'POST', ':path': '/echo' }, { endStream: false });
  stream.write('begin\n');
  await once(stream, 'response');
  return new Bystander(stream, socket);
}

export async function ingressRelays(t: CleanUp): Promise<Relay[]> {
  const hostile = await hostileServer(t);
  const { port } = await proxyTo(t, { address: () => `${HOST}:${hostile.port}` });
  const headers = { ':authority': NAME };
  return [
    {
      name: 'ingress, HTTP/1.1',
      client: () => byHttp1(port, NAME, hostile),
      bystander: () => echoByHttp1(port, NAME),
      echoed: hostile.echoed,
    },
    {
      name: 'ingress, HTTP/2',
      client: () => byHttp2(() => connect(port, HOST), headers, { offer: hostile.offer, ends: false }),
      bystander: () => echoByHttp2(connect(port, HOST), headers),
      echoed: hostile.echoed,
    },
  ];
}

/** A guest that may reach `names` and `port` at this machine. */
function guestOf(policy: ConstructorParameters<typeof ProxiedGuest>[0]): ProxiedGuest {
  const resolver = new NameResolver({ servers: [], isClosed: () => false });
  resolver.lookUp = async () => ({ outcome: 'found', addresses: [HOST], ttl_seconds: 60, closed: [] });
  return new ProxiedGuest(policy, {
    resolver,
    denials: new Denials(() => undefined),
    admit: async () => undefined,
  });
}

/** What the proxy's process does with connections of its guests. */
async function gateFor(t: CleanUp, take: (socket: Socket) => void): Promise<number> {
  const sockets = new Set<Socket>();
  const server = contain(createTcp({ allowHalfOpen: true }));
  server.on('connection', (socket) => {
    sockets.add(socket);
    socket.once('close', () => sockets.delete(socket)).on('error', () => socket.destroy());
    take(socket);
  });
  t.after(() => {
    for (const each of sockets) each.destroy();
    server.close();
  });
  return listen(server);
}

export async function gateByHttp1(t: CleanUp): Promise<Relay> {
  const hostile = await hostileServer(t);
  const name = 'allowed.test';
  const guest = guestOf({
    ...{ address: '198.18.0.2', secrets: [], authority: null },
    policy: { mode: 'allow', allow: [`${name}:${hostile.port}`] },
  });
  const way = new HttpHandler();
  const port = await gateFor(t, (socket) => way.pass(socket, guest, { address: HOST, port: hostile.port }));
  const host = `${name}:${hostile.port}`;
  return {
    name: 'proxy, HTTP/1.1',
    client: () => byHttp1(port, host, hostile),
    bystander: () => echoByHttp1(port, host),
    echoed: hostile.echoed,
  };
}

export async function gateByHttp2(t: CleanUp): Promise<Relay> {
  const internet = await makeAuthority('internet');
  const authority = await makeAuthority('berth');
  const folder = mkdtempSync(join(tmpdir(), 'berth-answers-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const roots = join(folder, 'roots.pem');
  writeFileSync(roots, internet.certificate);
  const answers = new Map<string, HostileAnswer>();
  const server = createTls({
    ...(await serverCertificate('*.fuzz.test', internet)),
    ALPNProtocols: ['h2'],
  });
  const echoed: Echoed = { open: 0, whole: 0 };
  const to = { address: HOST, port: await serveHttp2(t, server, answers, echoed) };
  const secrets = [{ placeholder: `berth-secret-${'0'.repeat(32)}`, hosts: ['*.fuzz.test'], value: 'value' }];
  const guest = guestOf({
    ...{
      address: '198.18.0.2',
      policy: { mode: 'open', allow: [] },
      secrets,
      authority: fingerprintOfAuthority(authority),
    },
  });
  const source = new CertificateSource();
  source.replace([{ authority, secrets }]);
  const contexts: TlsContexts = new TlsContexts((of, name, key) => {
    void source.make(of, name, key).then((made) => contexts.take(of, name, made));
  });
  const way = new SecretHandler({ contexts, roots: new TrustedRoots(roots), reportFailure: () => undefined });
  const port = await gateFor(
    t,
    (socket) => void passTls(socket, guest, to, way).catch(() => socket.destroy()),
  );
  const open = (name: string) =>
    connectTls({ host: HOST, port, servername: name, ca: authority.certificate, ALPNProtocols: ['h2'] });
  return {
    name: 'proxy, HTTP/2',
    client: (at) => {
      const name = `w${at}.fuzz.test`;
      const offer = (answer: HostileAnswer) => {
        answers.set(name, answer);
        return { path: '/', done: () => undefined };
      };
      return byHttp2(() => open(name), { ':scheme': 'https', ':authority': name }, { offer, ends: true });
    },
    bystander: () =>
      echoByHttp2(open('echo.fuzz.test'), { ':scheme': 'https', ':authority': 'echo.fuzz.test' }),
    echoed,
  };
}

/** Frames by hand: each stream gets the answer of its connection's name; that of `echo.fuzz.test` is Node's server. */
async function serveHttp2(
  t: CleanUp,
  server: Server,
  answers: Map<string, HostileAnswer>,
  echoed: Echoed,
): Promise<number> {
  const echo = createHttp2();
  echo.on('stream', (stream) => {
    countBody(stream, echoed);
    stream.on('error', () => undefined);
    stream.respond();
    stream.pipe(stream);
  });
  const sockets = new Set<Socket>();
  server.on('secureConnection', (socket: TLSSocket) => {
    sockets.add(socket);
    socket.once('close', () => sockets.delete(socket)).on('error', () => socket.destroy());
    const name = String(socket.servername);
    if (name.startsWith('echo')) return void echo.emit('connection', socket);
    // Its settings, which are empty.
    socket.write(Buffer.from([0, 0, 0, 4, 0, 0, 0, 0, 0]));
    let heard = Buffer.alloc(0);
    let at = 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'.length;
    socket.on('data', (data: Buffer) => {
      heard = Buffer.concat([heard, data]);
      for (
        ;
        heard.length >= at + 9 && heard.length >= at + 9 + heard.readUIntBE(at, 3);
        at += 9 + heard.readUIntBE(at, 3)
      ) {
        const [type, flags, id] = [heard[at + 3], heard[at + 4] ?? 0, heard.readUInt32BE(at + 5)];
        if (type === 4 && (flags & 1) === 0) socket.write(Buffer.from([0, 0, 0, 4, 1, 0, 0, 0, 0]));
        const answer = answers.get(name);
        if (type !== 1 || !answer) continue;
        socket.write(asHttp2(answer, id));
        if (answer.sent < 1) socket.end();
      }
    });
  });
  t.after(() => {
    for (const each of sockets) each.destroy();
    server.close();
  });
  return listen(server);
}

export async function adapterRelay(t: CleanUp): Promise<Relay> {
  const hostile = await hostileServer(t);
  const sandbox = '0'.repeat(26);
  const berth = createHttp((_request, response) => {
    response.setHeader('content-type', 'application/json');
    response.end(JSON.stringify({ data: [{ id: `inst_${sandbox}`, labels: {} }], next_cursor: null }));
  });
  forwardPorts(berth, hostile.port);
  const berth_port = await listen(berth);
  const adapter = new Adapter({
    ...{ berth_url: `http://${HOST}:${berth_port}`, key: Buffer.alloc(32), domain: 'localhost' },
    ...{ api_key: 'berth_live_test', log: () => undefined },
  });
  await adapter.start();
  const port = await listen(adapter.server);
  t.after(() => {
    adapter.close();
    berth.closeAllConnections();
    berth.close();
  });
  const host = `3000-${sandbox}.localhost`;
  return {
    name: 'adapter',
    client: () => byHttp1(port, host, hostile),
    bystander: () => echoByHttp1(port, host),
    echoed: hostile.echoed,
  };
}

/** Berth's forwarding of a guest's port. */
function forwardPorts(berth: Server, port: number): void {
  const sockets = new WebSocketServer({ noServer: true });
  berth.on('upgrade', (request, socket, head) => {
    sockets.handleUpgrade(request, socket, head, (client) => {
      const guest = connect({ port, host: HOST, allowHalfOpen: true });
      guest.on('data', (data) => client.send(data));
      guest.on('end', () => client.send('end'));
      guest.on('error', () => guest.destroy()).on('close', () => client.close());
      client.on('message', (data: Buffer, is_binary) => void (is_binary ? guest.write(data) : guest.end()));
      client.on('error', () => guest.destroy()).on('close', () => guest.destroy());
    });
  });
}
