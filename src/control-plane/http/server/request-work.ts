/** Each request is work: log lines name it, and a span has its route and status, never its path or query. */
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { isId } from '../../../shared/ids.ts';
import { traceContextOf, Work, type WorkOptions } from '../../../shared/tracing.ts';
import { MCP_PATH } from '../../mcp/routes.ts';

declare module 'fastify' {
  interface FastifyRequest {
    /** Null before the hooks of the request. */
    work: Work | null;
  }
}

/** Comes before all other hooks. */
export function registerWork(app: FastifyInstance, workOf: (request: FastifyRequest) => WorkOptions): void {
  app.decorateRequest('work', null);
  app.addHook('onRequest', (request, reply, done) => {
    const work = new Work({ kind: 'server', ...workOf(request) });
    request.work = work;
    // Also of a request whose caller disconnects, which has no answer.
    reply.raw.once('close', () => work.end());
    work.run(() => done());
  });
  // The reading of a body leaves the work.
  app.addHook('preValidation', ({ work }, _reply, done) => (work ? work.run(() => done()) : done()));
  app.addHook('onResponse', ({ work }, { statusCode }, done) => {
    if (!work) return done();
    work.note({ 'http.response.status_code': statusCode });
    // The log line is among these hooks.
    work.run(() => done());
    return work.end(statusCode >= 500 ? String(statusCode) : null);
  });
}

/** Of the public API. Pages and probes have no span. */
export function publicWork(request: FastifyRequest): WorkOptions {
  const { url } = request.routeOptions;
  const is_api = url?.startsWith('/v1/') || url === MCP_PATH;
  return {
    name: is_api ? `${request.method} ${url}` : null,
    context: { ...traceContextOf(request.headers), request_id: request.id },
    attributes: attributesOf(request),
  };
}

/** Of a call of another process: a part of its work, if it has any. */
export function internalWork(request: FastifyRequest): WorkOptions {
  const context = traceContextOf(request.headers);
  const name = context.traceparent === undefined ? null : `${request.method} ${request.routeOptions.url}`;
  return { name, context, attributes: attributesOf(request) };
}

function attributesOf({ method, routeOptions: { url }, params }: FastifyRequest) {
  const { id } = (params ?? {}) as Readonly<Record<string, string | undefined>>;
  return {
    'http.request.method': method,
    'http.route': url,
    'berth.instance_id': id !== undefined && isId('inst', id) ? id : null,
  };
}
