/**
 * A proxy to an HTTP server that injects a fault per request: a delay, an error, a body that is cut or changed, or no
 * answer at all. `cut` breaks all connections, and refuses new ones until `mend`. Other requests pass unchanged, with
 * their Host header, so that signatures stay valid.
 */
import assert from 'node:assert/strict';
import { randomInt } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, request, type Server, type ServerResponse } from 'node:http';
import { createServer as createTlsServer } from 'node:https';
import type { Socket } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { ownPort } from './own-ports.ts';

export interface Toxic {
  /** Delays the request first. */
  readonly delay_ms?: number;
  /** The proxy answers; the server never gets the request. */
  readonly answer?: { readonly status: number; readonly code: string };
  /** Never answered; the server never gets the request. */
  readonly hang?: boolean;
  /** The connection breaks after this many bytes of the request's body. */
  readonly cut_request_at?: number;
  /** One bit of the request's body arrives changed. */
  readonly flip_request_at?: number;
  /** The server handles the request; then the connection breaks without an answer. */
  readonly lose_answer?: boolean;
  /** The connection breaks after this many bytes of the answer's body. */
  readonly cut_answer_at?: number;
  /** The answer's body stops after this many bytes, and the connection stays open. */
  readonly stall_answer_at?: number;
  /** One bit of the answer's body arrives changed, if the body is long enough. */
  readonly flip_answer_at?: number;
  /** The answer ends after this many bytes of its body, and says that these are all. */
  readonly shorten_answer_to?: number;
  /** The answer has the body of the answer before, as from a cache that confuses its keys. */
  readonly other_answer?: boolean;
  /** Replaces the response's status and drops its body. */
  readonly status?: number;
}

export interface SeenRequest {
  readonly method: string;
  /** With its query. */
  readonly path: string;
  readonly headers: IncomingMessage['headers'];
  /** Counted from 1 since the last `poison`. */
  readonly number: number;
}

/** PEM. */
export interface Certificate {
  readonly key: string;
  readonly cert: string;
}

/** Where the proxy listens, and where the server does. */
export interface ProxyPlace {
  /** Default: 127.0.0.1. */
  readonly address?: string;
  /** Default: a free one. */
  readonly port?: number;
  /** The proxy serves https. */
  readonly tls?: Certificate;
}

/** Answers that a store, or a cache in front of it, gives although it has the object as it was written. */
const WRONG_ANSWERS: readonly Toxic[] = [
  { answer: { status: 404, code: 'NoSuchKey' } },
  { other_answer: true },
  { shorten_answer_to: 1_000 },
  { flip_answer_at: 100 },
];

/** A poison that answers every other read wrongly. A seed does not determine the number of requests, so there is none. */
export function wrongAnswers({ method }: SeenRequest): Toxic | undefined {
  const is_read = method === 'GET' || method === 'HEAD';
  return is_read && Math.random() < 0.5 ? WRONG_ANSWERS[randomInt(WRONG_ANSWERS.length)] : undefined;
}

export type Poison = (request: SeenRequest) => Toxic | undefined;

export class ToxicProxy {
  readonly #target_port: number;
  readonly #address: string;
  readonly #tls: Certificate | undefined;
  readonly #sockets = new Set<Socket>();
  #server: Server | undefined;
  readonly #port: number;
  #poison: Poison = () => undefined;
  #seen: SeenRequest[] = [];
  #under_way = 0;
  #most_at_once = 0;
  /** The body of the last answer to a GET. */
  #last = Buffer.alloc(0);

  private constructor(target_port: number, { address, port, tls }: ProxyPlace & { readonly port: number }) {
    this.#port = port;
    this.#target_port = target_port;
    this.#address = address ?? '127.0.0.1';
    this.#tls = tls;
  }

  /** It always connects to the server by http. */
  static async open(target_port: number, place: ProxyPlace = {}): Promise<ToxicProxy> {
    const proxy = new ToxicProxy(target_port, { ...place, port: place.port ?? (await ownPort()) });
    await proxy.mend();
    return proxy;
  }

  get endpoint(): string {
    return `${this.#tls ? 'https' : 'http'}://${this.#address}:${this.#port}`;
  }

  /** Requests since the last `poison`. */
  get seen(): readonly SeenRequest[] {
    return this.#seen;
  }

  /** The maximum number of concurrent requests since the last `poison`. */
  get most_at_once(): number {
    return this.#most_at_once;
  }

  poison(poison: Poison): void {
    this.#poison = poison;
    this.#seen = [];
    this.#most_at_once = 0;
  }

  heal(): void {
    this.poison(() => undefined);
  }

  async mend(): Promise<void> {
    assert(!this.#server, 'it was cut');
    const serve = (from: IncomingMessage, answer: ServerResponse) => {
      const { socket } = from;
      this.#most_at_once = Math.max(this.#most_at_once, ++this.#under_way);
      void this.#pass(from, answer)
        .catch(() => socket.destroy())
        .finally(() => this.#under_way--);
    };
    const server = this.#tls ? createTlsServer(this.#tls, serve) : createServer(serve);
    server.on('connection', (socket: Socket) => {
      this.#sockets.add(socket);
      socket.on('error', () => socket.destroy());
      socket.once('close', () => this.#sockets.delete(socket));
    });
    server.listen(this.#port, this.#address);
    await once(server, 'listening');
    this.#server = server;
  }

  /** Breaks every connection; further ones are refused. */
  async cut(): Promise<void> {
    const server = this.#server;
    this.#server = undefined;
    if (!server) return;
    const closed = once(server, 'close');
    server.close();
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }

  async #pass(from: IncomingMessage, answer: ServerResponse): Promise<void> {
    const { method = '', url: path = '', headers } = from;
    const seen = { method, path, headers, number: this.#seen.length + 1 };
    this.#seen.push(seen);
    const toxic = this.#poison(seen) ?? {};
    if (toxic.delay_ms !== undefined) await sleep(toxic.delay_ms);
    if (toxic.hang) return void from.resume();
    const body = await collect(from, toxic.cut_request_at);
    if (toxic.answer) return sayError(answer, toxic.answer, method);
    flipBit(body, toxic.flip_request_at);
    const upstream = await this.#ask(from, body);
    const bytes = this.#changed(await collect(upstream), toxic, method);
    if (toxic.lose_answer) return void from.socket.destroy();
    const { connection: _, 'transfer-encoding': __, ...passed } = upstream.headers;
    if (toxic.status !== undefined) return void answer.writeHead(toxic.status, { 'content-length': 0 }).end();
    const length = method === 'HEAD' ? passed['content-length'] : bytes.length;
    answer.writeHead(upstream.statusCode ?? 502, {
      ...passed,
      ...(length === undefined ? {} : { 'content-length': length }),
    });
    const stop_at = toxic.cut_answer_at ?? toxic.stall_answer_at;
    if (stop_at === undefined || stop_at >= bytes.length) return void answer.end(bytes);
    answer.write(bytes.subarray(0, stop_at), () => {
      if (toxic.cut_answer_at !== undefined) from.socket.destroy();
    });
    answer.flushHeaders();
  }

  #changed(body: Buffer, toxic: Toxic, method: string): Buffer {
    const before = this.#last;
    if (method === 'GET') this.#last = Buffer.from(body);
    flipBit(body, toxic.flip_answer_at);
    if (toxic.other_answer) return before;
    return toxic.shorten_answer_to === undefined ? body : body.subarray(0, toxic.shorten_answer_to);
  }

  async #ask(from: IncomingMessage, body: Buffer): Promise<IncomingMessage> {
    const { method, url: path, headers } = from;
    const to = { host: this.#address, port: this.#target_port, method, path, headers, agent: false };
    const { promise, resolve, reject } = Promise.withResolvers<IncomingMessage>();
    request(to, resolve).once('error', reject).end(body);
    return promise;
  }
}

async function collect(from: IncomingMessage, cut_at?: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let seen = 0;
  for await (const chunk of from) {
    chunks.push(chunk);
    seen += chunk.length;
    if (cut_at !== undefined && seen > cut_at) throw new Error('cut here');
  }
  return Buffer.concat(chunks);
}

function flipBit(bytes: Buffer, at: number | undefined): void {
  if (at !== undefined && at < bytes.length) bytes[at] = (bytes[at] ?? 0) ^ 0b100;
}

function sayError(
  answer: ServerResponse,
  { status, code }: { status: number; code: string },
  method: string,
): void {
  const xml = `<?xml version="1.0"?><Error><Code>${code}</Code><Message>by the proxy</Message></Error>`;
  answer.writeHead(status, { 'content-type': 'application/xml', 'content-length': xml.length });
  answer.end(method === 'HEAD' ? undefined : xml);
}
