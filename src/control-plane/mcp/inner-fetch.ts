/**
 * `fetch` to this server's own API, in this process. A request takes the way of any other: authentication, scopes, rate limits,
 * audit, log. It carries the credential, the address and the trace of the request that it serves, and nothing else of it.
 */
import type { Readable } from 'node:stream';
import { ReadableStream } from 'node:stream/web';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { traceHeaders } from '../../shared/tracing.ts';

/** Statuses whose answers have no body. */
const BODILESS: ReadonlySet<number> = new Set([204, 205, 304]);

/** @param gone aborts when the caller of `outer` disconnects */
export function innerFetch(
  app: FastifyInstance,
  outer: FastifyRequest,
  gone: AbortSignal,
): typeof globalThis.fetch {
  return async (input, init = {}) => {
    const { pathname, search } = new URL(String(input));
    const over = new AbortController();
    const signals = [gone, over.signal, ...(init.signal ? [init.signal] : [])];
    const signal = AbortSignal.any(signals);
    signal.throwIfAborted();
    const host = outer.headers.host;
    const response = await app.inject({
      method: (init.method ?? 'GET') as 'GET',
      url: pathname + search,
      headers: {
        ...Object.fromEntries(new Headers(init.headers)),
        ...(host === undefined ? {} : { host }),
        ...traceHeaders(),
      },
      ...(init.body === undefined || init.body === null ? {} : { payload: payloadOf(init.body) }),
      remoteAddress: outer.ip,
      payloadAsStream: true,
      signal,
    });
    const headers = new Headers();
    for (const [name, value] of Object.entries(response.headers))
      for (const each of Array.isArray(value) ? value : [value])
        if (each !== undefined) headers.append(name, String(each));
    const { statusCode: status } = response;
    const stream = response.stream();
    if (BODILESS.has(status)) {
      stream.resume();
      return new Response(null, { status, headers });
    }
    return new Response(bodyOf(stream, () => over.abort()) as never, { status, headers });
  };
}

/** The client sends JSON as a string, and content as bytes. */
function payloadOf(body: unknown): string | Buffer {
  return body instanceof Uint8Array ? Buffer.from(body) : String(body);
}

/** A reader that stops early ends the request. */
function bodyOf(stream: Readable, end: () => void): ReadableStream<Uint8Array> {
  const chunks = stream.iterator();
  return new ReadableStream({
    async pull(controller) {
      const { value, done } = await chunks.next();
      if (done === true) controller.close();
      else controller.enqueue(value as Uint8Array);
    },
    cancel: end,
  });
}
