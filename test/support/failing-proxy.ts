/**
 * A proxy in front of a server, for tests of clients. The test decides how the next requests fail. The proxy ends after
 * the tests of the file.
 */
import { createServer, request as httpRequest, type IncomingMessage, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { after } from 'node:test';

/** `lost`: the request is done, its answer is not seen. `begun`: its answer begins, and does not end. */
export type Fate = 'refused' | 'lost' | 'begun' | { status: number; code: string; retry_after?: string };

export interface Seen {
  readonly method: string;
  readonly url: string;
  readonly key: string | undefined;
  /** Of the body of its answer, passed on so far. */
  answered_bytes: number;
  /** Its connection has ended. */
  closed: boolean;
}

export class FailingProxy {
  /** What becomes of the next requests, in order; after them each passes. */
  fates: Fate[] = [];
  /** Requests whose URL fits are refused, whatever their fate. */
  refused: RegExp | null = null;
  seen: Seen[] = [];
  readonly #origin: string;
  readonly #server = createServer((request, response) => this.#serve(request, response));

  private constructor(origin: string) {
    this.#origin = origin;
  }

  static async before(origin: string): Promise<FailingProxy> {
    const proxy = new FailingProxy(origin);
    await new Promise<void>((listening) => proxy.#server.listen(0, '127.0.0.1', listening));
    after(() => {
      proxy.cut();
      proxy.#server.close();
    });
    return proxy;
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  reset(fates: readonly Fate[] = []): void {
    this.fates = [...fates];
    this.seen = [];
    this.refused = null;
  }

  /** Breaks all connections. */
  cut(): void {
    this.#server.closeAllConnections();
  }

  #serve(request: IncomingMessage, response: ServerResponse): void {
    const key = request.headers['idempotency-key'] as string | undefined;
    const seen = {
      method: request.method ?? '',
      url: request.url ?? '',
      key,
      answered_bytes: 0,
      closed: false,
    };
    this.seen.push(seen);
    request.socket.once('close', () => {
      seen.closed = true;
    });
    const fate = this.refused?.test(seen.url) ? 'refused' : this.fates.shift();
    if (fate === 'refused') response.destroy();
    else if (fate === undefined || fate === 'lost')
      this.#pass(request, response, { seen, lost: fate === 'lost' });
    else if (fate === 'begun') response.writeHead(200).flushHeaders();
    else {
      const { status, code, retry_after } = fate;
      const after = retry_after === undefined ? {} : { 'retry-after': retry_after };
      response.writeHead(status, { 'content-type': 'application/json', ...after });
      response.end(JSON.stringify({ error: { code, message: 'As told.', request_id: 'req_1' } }));
    }
  }

  #pass(
    request: IncomingMessage,
    response: ServerResponse,
    { seen, lost }: { readonly seen: Seen; readonly lost: boolean },
  ): void {
    const { method, headers, url } = request;
    const onward = httpRequest(this.#origin + url, { method, headers }, (answer) => {
      if (lost) return void answer.resume().once('end', () => response.destroy());
      response.writeHead(answer.statusCode ?? 500, answer.headers);
      answer.pipe(response);
      answer.on('data', (piece: Buffer) => {
        seen.answered_bytes += piece.length;
      });
    });
    response.once('close', () => onward.destroy());
    onward.on('error', () => response.destroy());
    request.pipe(onward);
  }
}
