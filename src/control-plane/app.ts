/**
 * Creates the Fastify server of the public API: first what holds for every request (connections, headers, errors,
 * access control, limits), then the routes of every feature. The server does not listen yet.
 */
import type { IncomingMessage } from 'node:http';
import proxyAddr from '@fastify/proxy-addr';
import Fastify, { type FastifyInstance, LogController } from 'fastify';
import { AppError } from '../shared/errors.ts';
import { newRequestId } from '../shared/ids.ts';
import { requestLog } from '../shared/log.ts';
import { registerApiKeys } from './api-keys/routes.ts';
import { registerServiceAccounts } from './api-keys/service-account-routes.ts';
import { registerAudit } from './audit/routes.ts';
import type { AppContext } from './context.ts';
import { registerGenerations } from './disks/routes.ts';
import { registerVmEgress } from './egress/routes.ts';
import { EventStreams } from './events/event-stream.ts';
import { registerEvents } from './events/routes.ts';
import { registerExecOutput } from './execs/output-routes.ts';
import { registerExecs } from './execs/routes.ts';
import { registerFileContent } from './files/content-routes.ts';
import { registerFiles } from './files/routes.ts';
import { registerOperator } from './fleet/operator-routes.ts';
import { registerAccess, registerReauthorisation } from './http/access.ts';
import { endConnectionsAtClose, mayTakeLong } from './http/connections.ts';
import { sendError, sendMalformed } from './http/errors.ts';
import { type App, typed } from './http/mutate.ts';
import { registerDocument } from './http/openapi-document.ts';
import { CursorSealer } from './http/pagination.ts';
import { RateLimits } from './http/rate-limits.ts';
import {
  KnownHosts,
  lazySchemas,
  publicWork,
  registerContentTypes,
  registerConventions,
  registerKnownHosts,
  registerWork,
} from './http/server.ts';
import { answerWithSession, registerAuth } from './identity/auth-routes.ts';
import { registerDeviceLogins } from './identity/device-login-routes.ts';
import { registerMe } from './identity/me-routes.ts';
import { registerMfa } from './identity/mfa-routes.ts';
import { registerOidc } from './identity/oidc-routes.ts';
import { registerSessions } from './identity/session-routes.ts';
import { registerImages } from './images/routes.ts';
import { registerInstances } from './instances/routes.ts';
import { registerMcp } from './mcp/routes.ts';
import { registerHealth } from './monitoring/health.ts';
import { registerNotifications } from './notifications/routes.ts';
import { registerInvitations } from './organisations/invitation-routes.ts';
import { registerMembers } from './organisations/member-routes.ts';
import { OpenStreams } from './organisations/open-streams.ts';
import { registerOrgs } from './organisations/routes.ts';
import { registerConsole, registerSettings } from './pages/console.ts';
import { registerDocs } from './pages/docs.ts';
import { registerPortAccess } from './ports/access-routes.ts';
import { registerPorts } from './ports/routes.ts';
import { registerSecrets } from './secrets/routes.ts';
import { registerInstanceSsh } from './ssh-keys/instance-routes.ts';
import { registerUsage } from './usage/routes.ts';
import { registerVmConsole } from './vms/console-routes.ts';
import { registerVmExec } from './vms/exec-routes.ts';
import { GuestStreams, isGuestStream } from './vms/guest-streams.ts';
import { registerInstanceMetrics, registerVmMetrics } from './vms/metric-routes.ts';
import { registerVm } from './vms/routes.ts';
import { registerWebhookDeliveries, registerWebhooks } from './webhooks/routes.ts';

const BODY_LIMIT_BYTES = 1024 * 1024;

/** The public API. Nothing listens yet. `schemas`: how schemas become code; lazily by default. */
export async function createApp(context: AppContext, schemas = lazySchemas()): Promise<FastifyInstance> {
  const app = Fastify({
    // Fastify's type of a logger differs from ours only by name.
    loggerInstance: context.log as never,
    logController: new LogController({ disableRequestLogging: true, requestIdLogLabel: 'request_id' }),
    genReqId: newRequestId,
    childLoggerFactory: (log, bindings, options) => requestLog(log as never, bindings, options),
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
    // Fastify's own answer has another shape than our errors; `registerConventions` answers instead.
    return503OnClosing: false,
    // Of a path that cannot be decoded.
    frameworkErrors: (_error, request, reply) => {
      reply.header('x-request-id', request.id);
      sendError(new AppError('NOT_FOUND'), request, reply);
    },
    clientErrorHandler: (error, socket) => {
      if (!mayTakeLong(error, socket)) sendMalformed(error, socket, newRequestId());
    },
    ...listenerOptions(context.tls),
  }) as unknown as FastifyInstance;

  endConnectionsAtClose(app);
  registerWork(app, publicWork);
  registerConventions(app, context.public_url.startsWith('https://'));
  app.setErrorHandler((error, request, reply) => sendError(error, request, reply));
  registerContentTypes(app);
  const known_hosts = new KnownHosts(context);
  registerKnownHosts(app, known_hosts);
  // A server may ignore an unknown Expect (RFC 9110, section 10.1.1); Node would refuse it in another shape than ours.
  app.server.on('checkExpectation', (request, response) => app.server.emit('request', request, response));
  if (context.metrics) context.metrics.count(app);
  registerDocument(app);
  // Pages without a credential, so before the access rules.
  registerDocs(app, context);
  registerSettings(app, context);
  if (context.console_dir === undefined || !registerConsole(app, context.console_dir))
    app.setNotFoundHandler((request, reply) => sendError(new AppError('NOT_FOUND'), request, reply));
  const limits = new RateLimits(context.rate_limits, context.control_planes ?? (() => 1));
  registerAccess(app, context, limits);
  registerReauthorisation(app, context.db, context.slow_ms);
  const open_streams = new OpenStreams(context);
  app.addHook('onClose', () => open_streams.end());
  new GuestStreams(app, { ...context, known_hosts, limits }, open_streams, addressOf(context));
  await app.register(async () => registerRoutes(typed(app), context, limits, open_streams));
  return app;
}

/** Only an upgrade to a guest is granted. Any other request for one is served as if it had not asked. */
function listenerOptions(tls: AppContext['tls']): object {
  // Node would refuse a request without Host in another shape than ours.
  const options = { shouldUpgradeCallback: isGuestStream, requireHostHeader: false };
  return tls === null ? { http: options } : { https: { ...options, cert: tls.cert, key: tls.key } };
}

/** The caller's address, determined as Fastify does. */
function addressOf(context: AppContext): (request: IncomingMessage) => string {
  const trusted = proxyAddr.compile([...context.trusted_proxies]);
  return (request) => proxyAddr(request, trusted);
}

function registerRoutes(app: App, context: AppContext, limits: RateLimits, open_streams: OpenStreams): void {
  const cursors = new CursorSealer(context.root_key);
  const streams = new EventStreams(app, context, open_streams);
  registerHealth(app, context);
  registerAuth(app, context, limits);
  registerOidc(app, context, limits);
  registerDeviceLogins(app, context, limits);
  registerSessions(app, context, cursors, limits);
  registerMe(app, context, cursors, limits);
  registerMfa(app, context, cursors, limits, (request, reply, user_id) =>
    answerWithSession(context, request, reply, user_id),
  );
  registerApiKeys(app, context, cursors);
  registerServiceAccounts(app, context, cursors);
  registerOrgs(app, context, cursors);
  registerOperator(app, context, cursors);
  registerMembers(app, context, cursors);
  registerInvitations(app, context, cursors);
  registerAudit(app, context, cursors);
  registerImages(app, context, cursors);
  registerInstances(app, context, cursors);
  registerGenerations(app, context, cursors);
  registerVm(app, context);
  registerVmConsole(app, context);
  registerVmEgress(app, context);
  registerVmExec(app, context);
  registerExecs(app, context, cursors);
  registerExecOutput(app, context, open_streams);
  registerFiles(app, context, cursors);
  registerFileContent(app, context);
  registerVmMetrics(app, context);
  registerInstanceMetrics(app, context);
  registerInstanceSsh(app, context, cursors);
  registerPorts(app, context, cursors);
  registerPortAccess(app, context);
  registerSecrets(app, context, cursors);
  registerWebhooks(app, context, cursors);
  registerWebhookDeliveries(app, context, cursors);
  registerNotifications(app, context, cursors, streams);
  registerUsage(app, context, cursors);
  registerEvents(app, context, cursors, streams);
  registerMcp(app, context, limits);
}
