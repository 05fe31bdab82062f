/** What holds for every request: headers of the answer, refusal while the server stops, unknown queries, the log line. */
import type { FastifyInstance } from 'fastify';
import { AppError } from '../../../shared/errors.ts';
import { DOCS_PREFIX } from '../../pages/docs.ts';
import { EmptyBody } from '../schemas.ts';

/** For browsers. The pages of `/docs` have their own content policy. */
const HEADERS = { 'x-content-type-options': 'nosniff', 'referrer-policy': 'no-referrer' };
const API_HEADERS = {
  'cache-control': 'no-store',
  'content-security-policy': "default-src 'none'; base-uri 'none'; frame-ancestors 'none'",
};
/** Without `includeSubDomains`: we know nothing of the hosts below this name. */
const HTTPS_HEADERS = { 'strict-transport-security': 'max-age=31536000' };

/** Refusals whose log line names the caller's address. */
const REFUSALS: ReadonlySet<number> = new Set([401, 403, 421, 423, 429]);

export function registerConventions(app: FastifyInstance, https: boolean): void {
  const everywhere = { ...HEADERS, ...(https ? HTTPS_HEADERS : {}) };
  const api = { ...everywhere, ...API_HEADERS };
  let closing = false;
  app.addHook('preClose', async () => {
    closing = true;
  });
  // Hooks that wait for nothing use the callback: an async hook costs a turn of the event loop.
  app.addHook('onRequest', (request, reply, done) => {
    reply.headers(request.url.startsWith(DOCS_PREFIX) ? everywhere : api);
    reply.header('x-request-id', request.id);
    if (closing) {
      const message = 'The server is stopping. Try again shortly.';
      throw new AppError('UNAVAILABLE', { message, retry_after_seconds: 1 });
    }
    if (request.headers.host === undefined && request.raw.httpVersion === '1.1') {
      throw new AppError('INVALID_REQUEST', {
        message: 'The request has no Host header. HTTP/1.1 needs one.',
      });
    }
    done();
  });
  // A route that declares no query takes none: unknown query parameters are refused everywhere.
  app.addHook('onRoute', (route) => {
    if (route.url.startsWith('/v1/')) route.schema = { querystring: EmptyBody, ...route.schema };
  });
  app.addHook('onResponse', (request, reply, done) => {
    const level = isProbe(request.routeOptions.url) ? 'debug' : 'info';
    request.log[level](
      {
        method: request.method,
        route: request.routeOptions.url ?? null,
        status: reply.statusCode,
        duration_ms: Math.round(reply.elapsedTime),
        principal: request.principal?.credential.id ?? null,
        ...(REFUSALS.has(reply.statusCode) ? { ip: request.ip } : {}),
      },
      'request',
    );
    done();
  });
}

/** Supervisors ask these every second or so. */
function isProbe(url: string | undefined): boolean {
  return url === '/healthz' || url === '/readyz';
}
