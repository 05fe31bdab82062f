import { isUtf8 } from 'node:buffer';
import type { IncomingMessage } from 'node:http';
import proxyAddr from '@fastify/proxy-addr';
import swagger from '@fastify/swagger';
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox';
import Fastify, { type FastifyInstance, LogController } from 'fastify';
import { AppError } from '../lib/errors.ts';
import { registerAccess } from './access.ts';
import { registerConsole } from './console.ts';
import { ConsoleStreams, isConsoleStream } from './console-stream.ts';
import type { AppContext } from './context.ts';
import { DOCS_PREFIX, registerDocs } from './docs.ts';
import { endConnectionsAtClose } from './end-connections.ts';
import { sendError, sendMalformed } from './errors.ts';
import { EventStreams } from './event-stream.ts';
import { registerHealth } from './health.ts';
import { KnownHosts, registerKnownHosts } from './known-hosts.ts';
import { lazySchemas } from './lazy-schemas.ts';
import { registerLookAgain } from './look-again.ts';
import { openApiOptions } from './openapi.ts';
import { CursorSealer } from './pagination.ts';
import { Places } from './places.ts';
import { RateLimits } from './rate-limits.ts';
import { newRequestId } from './request-id.ts';
import { EmptyBody } from './schemas.ts';
import { registerApiKeys } from './v1/api-keys.ts';
import { registerAudit } from './v1/audit.ts';
import { answerWithSession, registerAuth } from './v1/auth.ts';
import { registerEvents } from './v1/events.ts';
import { registerGenerations } from './v1/generations.ts';
import { registerImages } from './v1/images.ts';
import { registerInstanceSsh } from './v1/instance-ssh.ts';
import { registerInstances } from './v1/instances.ts';
import { registerInvitations } from './v1/invitations.ts';
import { registerMe } from './v1/me.ts';
import { registerMembers } from './v1/members.ts';
import { registerMfa } from './v1/mfa.ts';
import { registerNotifications } from './v1/notifications.ts';
import { registerOrgs } from './v1/orgs.ts';
import { registerServiceAccounts } from './v1/service-accounts.ts';
import { registerSessions } from './v1/sessions.ts';
import { registerVm } from './v1/vm.ts';
import { registerVmConsole } from './v1/vm-console.ts';
import { registerVmExec } from './v1/vm-exec.ts';
import { registerVmMetrics } from './v1/vm-metrics.ts';
import { registerWebhookDeliveries } from './v1/webhook-deliveries.ts';
import { registerWebhooks } from './v1/webhooks.ts';

const BODY_LIMIT_BYTES = 1024 * 1024;

export function typed(app: FastifyInstance) {
  return app.withTypeProvider<TypeBoxTypeProvider>();
}
export type App = ReturnType<typeof typed>;

/** Of the asked-for upgrades only a console's is given; others are requests like any, as without this. */
function serverOptions(tls: AppContext['tls']): object {
  // Without a Host Node would answer by itself, in another shape than ours.
  const options = { shouldUpgradeCallback: isConsoleStream, requireHostHeader: false };
  return tls === null ? { http: options } : { https: { ...options, cert: tls.cert, key: tls.key } };
}

/** The caller's address, as Fastify tells it of a request. */
function addressOf(context: AppContext): (request: IncomingMessage) => string {
  const trusted = proxyAddr.compile([...context.trusted_proxies]);
  return (request) => proxyAddr(request, trusted);
}

/** The public API. Nothing listens yet. `schemas`: how they become code, lazily unless told. */
export async function createApp(context: AppContext, schemas = lazySchemas()): Promise<FastifyInstance> {
  const fastify = Fastify({
    // The type of a logger differs between Fastify's own and ours only by name.
    loggerInstance: context.log as never,
    logController: new LogController({ disableRequestLogging: true, requestIdLogLabel: 'request_id' }),
    genReqId: newRequestId,
    bodyLimit: BODY_LIMIT_BYTES,
    trustProxy: context.trusted_proxies.length === 0 ? false : [...context.trusted_proxies],
    ajv: {
      customOptions: {
        removeAdditional: false,
        coerceTypes: false,
        useDefaults: true,
        allErrors: false,
        verbose: true,
      },
    },
    schemaController: schemas,
    requestTimeout: 60_000,
    keepAliveTimeout: 65_000,
    routerOptions: { maxParamLength: 256 },
    exposeHeadRoutes: false,
    // Fastify's own answer is of another shape than ours: `registerConventions` gives one.
    return503OnClosing: false,
    // A path that cannot be decoded names nothing.
    frameworkErrors: (_error, request, reply) => {
      reply.header('x-request-id', request.id);
      sendError(new AppError('NOT_FOUND'), request, reply);
    },
    clientErrorHandler: (error, socket) => sendMalformed(error, socket, newRequestId()),
    ...serverOptions(context.tls),
  }) as unknown as FastifyInstance;
  const app = typed(fastify);

  endConnectionsAtClose(fastify);
  registerConventions(fastify, context.public_url.startsWith('https://'));
  const known_hosts = new KnownHosts(context);
  registerKnownHosts(fastify, known_hosts);
  // The same for an Expect that is unknown, which may be passed over (RFC 9110, section 10.1.1).
  fastify.server.on('checkExpectation', (request, response) =>
    fastify.server.emit('request', request, response),
  );
  if (context.metrics) context.metrics.count(fastify);
  await fastify.register(swagger, openApiOptions());
  // Before the access rules: these pages are for everybody, as the document is.
  await registerDocs(fastify);
  if (context.console_dir !== undefined) registerConsole(fastify, context.console_dir);
  const limits = new RateLimits(context.rate_limits);
  registerAccess(fastify, context, limits);
  registerLookAgain(fastify, context.db, context.slow_ms);
  const cursors = new CursorSealer(context.secret_key);
  const places = new Places();
  const streams = new EventStreams(fastify, context, places);
  new ConsoleStreams(fastify, { ...context, known_hosts }, places, addressOf(context));

  await fastify.register(async () => {
    registerHealth(app, context);
    registerAuth(app, context, limits);
    registerSessions(app, context, cursors, limits);
    registerMe(app, context, cursors, limits);
    registerMfa(app, context, cursors, limits, (request, reply, user_id) =>
      answerWithSession(context, request, reply, user_id),
    );
    registerApiKeys(app, context, cursors);
    registerServiceAccounts(app, context, cursors);
    registerOrgs(app, context, cursors, places);
    registerMembers(app, context, cursors);
    registerInvitations(app, context, cursors);
    registerAudit(app, context, cursors);
    registerImages(app, context, cursors);
    registerInstances(app, context, cursors);
    registerGenerations(app, context, cursors);
    registerVm(app, context);
    registerVmConsole(app, context);
    registerVmExec(app, context);
    registerVmMetrics(app, context);
    registerInstanceSsh(app, context, cursors);
    registerWebhooks(app, context, cursors);
    registerWebhookDeliveries(app, context, cursors);
    registerNotifications(app, context, cursors, streams);
    registerEvents(app, context, cursors, streams);
  });
  return fastify;
}

/** What browsers are told of every answer; the pages of `/docs` have a policy of their own. */
const HEADERS = { 'x-content-type-options': 'nosniff', 'referrer-policy': 'no-referrer' };
const API_HEADERS = {
  'cache-control': 'no-store',
  'content-security-policy': "default-src 'none'; base-uri 'none'; frame-ancestors 'none'",
};
/** Of this host alone: of others below its name we know nothing. */
const HTTPS_HEADERS = { 'strict-transport-security': 'max-age=31536000' };

function registerConventions(fastify: FastifyInstance, https: boolean): void {
  const everywhere = { ...HEADERS, ...(https ? HTTPS_HEADERS : {}) };
  const api = { ...everywhere, ...API_HEADERS };
  let closing = false;
  fastify.addHook('preClose', async () => {
    closing = true;
  });
  // Hooks of every request that wait for nothing are called back, not awaited: each promise is a turn of its own.
  fastify.addHook('onRequest', (request, reply, done) => {
    reply.headers(request.url.startsWith(DOCS_PREFIX) ? everywhere : api);
    reply.header('x-request-id', request.id);
    if (closing) {
      const message = 'The server is stopping. Try again shortly.';
      throw new AppError('UNAVAILABLE', { message, retry_after_seconds: 1 });
    }
    if (request.headers.host === undefined && request.raw.httpVersion === '1.1') {
      throw new AppError('INVALID_REQUEST', { message: 'HTTP/1.1 takes a Host header.' });
    }
    done();
  });
  // Unknown query parameters are refused everywhere, so a route that takes none says so.
  fastify.addHook('onRoute', (route) => {
    if (route.url.startsWith('/v1/')) route.schema = { querystring: EmptyBody, ...route.schema };
  });
  fastify.addHook('onResponse', (request, reply, done) => {
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
  fastify.setErrorHandler((error, request, reply) => sendError(error, request, reply));
  fastify.setNotFoundHandler({}, (request, reply) => sendError(new AppError('NOT_FOUND'), request, reply));
  // An empty body is no body, with or without Content-Type.
  fastify.removeContentTypeParser(['application/json', 'text/plain']);
  fastify.addContentTypeParser('application/json', { parseAs: 'buffer' }, (_request, bytes, done) => {
    if (bytes.length === 0) return done(null, undefined);
    try {
      done(null, parseJson(bytes as Buffer));
    } catch {
      done(new AppError('INVALID_REQUEST', { message: 'The body is not valid JSON.' }), undefined);
    }
  });
  // Nothing is of no type: clients that send none say all kinds. Without a credential what is said counts, since a
  // page of another site can send any of these, but not JSON.
  fastify.addContentTypeParser('*', { parseAs: 'string' }, (request, text, done) => {
    const nothing = text.length === 0 && request.routeOptions.config.access !== 'public';
    done(nothing || request.is404 ? null : new AppError('UNSUPPORTED_MEDIA_TYPE'), undefined);
  });
  fastify.addHook('preValidation', (request, _reply, done) => {
    if (request.routeOptions.schema?.body !== undefined) request.body ??= {};
    done();
  });
}

/** Who was not let in: from where is worth a look. */
const REFUSALS: ReadonlySet<number> = new Set([401, 403, 421, 423, 429]);

/** What supervisors ask every second or so. */
function isProbe(url: string | undefined): boolean {
  return url === '/healthz' || url === '/readyz';
}

/** A text without these has no key `__proto__`, however it is spelt. */
const MAY_NAME_PROTOTYPE = /__proto__|\\u/;

/** JSON.parse, refusing keys that would reach an object's prototype, and what would be read as other text than was sent. */
function parseJson(bytes: Buffer): unknown {
  if (!isUtf8(bytes)) throw new SyntaxError('not UTF-8');
  const text = bytes.toString('utf8');
  if (!MAY_NAME_PROTOTYPE.test(text)) return JSON.parse(text);
  return JSON.parse(text, (key, value: unknown) => {
    if (key === '__proto__') throw new SyntaxError('forbidden key');
    return value;
  });
}
