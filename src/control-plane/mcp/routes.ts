/**
 * Serves `/mcp`: the Model Context Protocol over streamable HTTP, without sessions. The tools of a request call the
 * public API, in this process, with the credential of that request (`innerFetch`). Each message of a batch counts as a
 * request. GET and DELETE concern only sessions, so the SDK answers them with 405.
 */
import type { Readable } from 'node:stream';
import { ReadableStream } from 'node:stream/web';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { traceHeaders } from '../../shared/tracing.ts';
import type { AppContext } from '../context.ts';
import { principalOf } from '../http/access.ts';
import { disconnectSignal } from '../http/connections.ts';
import type { App } from '../http/mutate.ts';
import { API_VERSION } from '../http/openapi-document.ts';
import type { RateLimits } from '../http/rate-limits.ts';
import { MCP_PATH } from '../http/server.ts';

/** Statuses whose answers have no body. */
const BODILESS: ReadonlySet<number> = new Set([204, 205, 304]);

/**
 * `fetch` to this server's own API, in this process. A request is treated like any other: authentication, scopes, rate limits,
 * audit, log. It carries the credential, the address and the trace of `outer`, and nothing else of it.
 * @param gone aborts when the caller of `outer` disconnects
 */
function innerFetch(app: FastifyInstance, outer: FastifyRequest, gone: AbortSignal): typeof globalThis.fetch {
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

export function registerMcp(app: App, { public_url, log }: AppContext, limits: RateLimits): void {
  app.route({
    method: ['POST', 'GET', 'DELETE'],
    url: MCP_PATH,
    config: { access: 'any', own_site: true },
    schema: { hide: true },
    handler: async (request, reply) => {
      // The request was counted as one.
      const more = Array.isArray(request.body) ? request.body.length - 1 : 0;
      if (more > 0) limits.countPrincipal(principalOf(request), reply, more);
      // Its schemas take memory that few installations need.
      const { answerMcp } = await import('../../mcp/mcp-server.ts');
      const gone = disconnectSignal(reply);
      const fetch = innerFetch(app as never, request, gone);
      const response = await answerMcp(webRequest(request, public_url, gone), {
        body: request.body,
        api: { url: public_url, fetch, ...credentialOf(request) },
        version: API_VERSION,
        onProblem: (error) => log.debug({ request_id: request.id, err: error }, 'mcp'),
      });
      return reply.send(response as never) as FastifyReply;
    },
  });
}

/** Its body is parsed already. */
function webRequest(request: FastifyRequest, origin: string, signal: AbortSignal): Request {
  const headers = new Headers();
  for (const [name, value] of Object.entries(request.headers))
    if (typeof value === 'string') headers.set(name, value);
  return new Request(origin + MCP_PATH, { method: request.method, headers, signal });
}

function credentialOf({ headers }: FastifyRequest) {
  const [, token] = /^Bearer +(.+)$/i.exec(headers.authorization ?? '') ?? [];
  const org = headers['berth-org'];
  return {
    token,
    org: typeof org === 'string' ? org : undefined,
    user_agent: headers['user-agent'],
  };
}
