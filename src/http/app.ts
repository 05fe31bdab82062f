import type { IncomingMessage } from 'node:http';
import proxyAddr from '@fastify/proxy-addr';
import Fastify, { type FastifyInstance, LogController } from 'fastify';
import { AppError } from '../lib/errors.ts';
import { requestLog } from '../lib/log.ts';
import { newRequestId } from '../lib/request-id.ts';
import { OpenStreams } from '../orgs/open-streams.ts';
import { registerAccess } from './access.ts';
import type { AppContext } from './context.ts';
import { sendError, sendMalformed } from './errors.ts';
import { registerMcp } from './mcp/mcp-route.ts';
import { registerHealth } from './monitoring/health.ts';
import { registerDocument } from './openapi/document.ts';
import { registerConsole } from './pages/console.ts';
import { registerDocs } from './pages/docs.ts';
import { registerSettings } from './pages/settings.ts';
import { CursorSealer } from './pagination.ts';
import { RateLimits } from './rate-limits.ts';
import { registerReauthorisation } from './reauthorise.ts';
import { registerContentTypes } from './server/content-types.ts';
import { registerConventions } from './server/conventions.ts';
import { endConnectionsAtClose } from './server/end-connections.ts';
import { KnownHosts, registerKnownHosts } from './server/known-hosts.ts';
import { lazySchemas } from './server/lazy-schemas.ts';
import { mayTakeLong } from './server/long-requests.ts';
import { publicWork, registerWork } from './server/request-work.ts';
import { EventStreams } from './streams/event-stream.ts';
import { GuestStreams, isGuestStream } from './streams/guest-streams.ts';
import { type App, typed } from './typed-app.ts';
import { registerApiKeys } from './v1/api-keys.ts';
import { registerAudit } from './v1/audit.ts';
import { answerWithSession, registerAuth } from './v1/auth.ts';
import { registerDeviceLogins } from './v1/device-logins.ts';
import { registerEvents } from './v1/events.ts';
import { registerExecOutput } from './v1/exec-output.ts';
import { registerExecs } from './v1/execs.ts';
import { registerFileContent } from './v1/file-content.ts';
import { registerFiles } from './v1/files.ts';
import { registerGenerations } from './v1/generations.ts';
import { registerImages } from './v1/images.ts';
import { registerInstanceMetrics } from './v1/instance-metrics.ts';
import { registerInstanceSsh } from './v1/instance-ssh.ts';
import { registerInstances } from './v1/instances.ts';
import { registerInvitations } from './v1/invitations.ts';
import { registerMe } from './v1/me.ts';
import { registerMembers } from './v1/members.ts';
import { registerMfa } from './v1/mfa.ts';
import { registerNotifications } from './v1/notifications.ts';
import { registerOidc } from './v1/oidc.ts';
import { registerOperator } from './v1/operator.ts';
import { registerOrgs } from './v1/orgs.ts';
import { registerPortAccess } from './v1/port-access.ts';
import { registerPorts } from './v1/ports.ts';
import { registerSecrets } from './v1/secrets.ts';
import { registerServiceAccounts } from './v1/service-accounts.ts';
import { registerSessions } from './v1/sessions.ts';
import { registerUsage } from './v1/usage.ts';
import { registerVm } from './v1/vm.ts';
import { registerVmConsole } from './v1/vm-console.ts';
import { registerVmEgress } from './v1/vm-egress.ts';
import { registerVmExec } from './v1/vm-exec.ts';
import { registerVmMetrics } from './v1/vm-metrics.ts';
import { registerWebhookDeliveries } from './v1/webhook-deliveries.ts';
import { registerWebhooks } from './v1/webhooks.ts';

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
  const limits = new RateLimits(context.rate_limits, context.db);
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
