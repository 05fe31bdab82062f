/**
 * Composes the internal API, which agents, ingresses and other control planes call (its routes are in
 * protocol/routes.ts). It listens on a unix socket, and for other machines on an address of its own over TLS, never on
 * the public listener. Every call carries the token of a host, of an ingress or of a control plane.
 */
import Fastify, { type FastifyInstance, LogController } from 'fastify';
import type { TSchema } from 'typebox';
import { POLL_HOLD_MS } from '../../protocol/client.ts';
import { AGENT_PROTOCOL, PROTOCOL_HEADER, refusalBody } from '../../protocol/protocol.ts';
import { type AgentRoute, ROUTES } from '../../protocol/routes.ts';
import { present } from '../../shared/assert.ts';
import { AppError } from '../../shared/errors.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import { transaction } from '../db/pool.ts';
import { registerObjectPermissions } from '../disks/object-permission-routes.ts';
import { readDataKeys, readHead } from '../disks/read-head.ts';
import { findLineage, findStoreMark, recordBootOrder } from '../disks/store.ts';
import { recordDenied } from '../egress/record-denied.ts';
import { recordExec } from '../execs/use-exec.ts';
import {
  isRotationDue,
  promoteNextCredential,
  setNextCredential,
  useJoinToken,
} from '../fleet/credential-store.ts';
import { registerHostCalls, registerPeers } from '../fleet/host-call-routes.ts';
import { recordHeartbeat, renewLease } from '../fleet/host-store.ts';
import { registerWeaknesses } from '../fleet/weaknesses.ts';
import { endConnectionsAtClose } from '../http/connections.ts';
import { sendError } from '../http/errors.ts';
import { internalWork, registerWork } from '../http/server.ts';
import { registerImageCalls } from '../images/register-image.ts';
import { commitGeneration } from '../instances/commit-generation.ts';
import { recordDisks } from '../instances/record-disks.ts';
import { RouteChanges, registerHttpPorts, registerOpenPort } from '../ports/internal-routes.ts';
import { recordActivity } from '../vms/activity-store.ts';
import { applyReport, confirmKeys, recordLogins, tellOfUnknownVm } from '../vms/apply-report.ts';
import { listAssignments } from '../vms/assignment-store.ts';
import { recordFlush, recordFlushFailure } from '../vms/flush-vm.ts';
import { recordMinutes } from '../vms/metric-history.ts';
import { listRoutes } from '../vms/route-store.ts';
import { wakeVm } from '../vms/start-vm.ts';
import { markUserDataGiven, readUserData } from '../vms/store.ts';
import {
  accepted,
  admitHost,
  admitIngress,
  checkedBy,
  held,
  type InternalContext,
  pollEtag,
  serve,
  serveIngress,
  tokenHashIn,
} from './serve.ts';

const BODY_LIMIT_BYTES = 16 * 1024 * 1024;
/** A flush of a whole, incompressible disk of 1 TiB is 177,000 segments: 30 MiB. */
const COMMIT_LIMIT_BYTES = 64 * 1024 * 1024;
/** Detects the end of SSH connections to a host that has vanished. */
const KEEP_ALIVE = { keepAlive: true, keepAliveInitialDelay: 60_000 };

/** By the path of the route that Fastify has chosen: a request may spell its own path in other ways. */
const CALLERS: ReadonlyMap<string | undefined, AgentRoute['caller']> = new Map(
  Object.values(ROUTES).map(({ path, caller }) => [path, caller]),
);

/** With `tls` it serves agents and ingresses of other machines only; without, on a unix socket, those of this machine. */
export function createInternalApp(
  context: InternalContext,
  tls: { readonly cert: string; readonly key: string } | null = null,
): FastifyInstance {
  const far = tls !== null;
  const { db, log } = context;
  const app = Fastify({
    loggerInstance: log as never,
    logController: new LogController({ disableRequestLogging: true }),
    bodyLimit: BODY_LIMIT_BYTES,
    keepAliveTimeout: 65_000,
    ...(tls
      ? { https: { cert: tls.cert, key: tls.key, ...KEEP_ALIVE, minVersion: 'TLSv1.3' as const } }
      : {}),
  }) as unknown as FastifyInstance;
  app.setErrorHandler((error, request, reply) => sendError(error, request, reply));
  endConnectionsAtClose(app);
  registerWork(app, internalWork);
  app.setValidatorCompiler(({ schema }) => checkedBy(schema as TSchema));
  app.decorateRequest('calling_host', null);
  app.decorateRequest('calling_ingress', null);
  app.decorateRequest('is_of_peer', false);
  app.addHook('onRequest', async (request, reply) => {
    reply.header(PROTOCOL_HEADER, String(AGENT_PROTOCOL));
    const path = request.routeOptions.url;
    const callers = CALLERS.get(path);
    if (callers === 'peer') {
      if (!context.peers?.isPeer(request.headers)) throw new AppError('UNAUTHENTICATED');
      request.is_of_peer = true;
      context.connections?.trust(request.raw.socket);
      return undefined;
    }
    const { caller, refusal } =
      callers === 'ingress'
        ? await admitIngress(db, request.headers, far)
        : await admitHost(db, request.headers, far, path === ROUTES.join.path);
    if ('remote' in caller) request.calling_host = caller;
    else request.calling_ingress = caller;
    // Leases and polls of a host must not end because of strangers, nor of what its VMs carry.
    context.connections?.trust(request.raw.socket);
    if (refusal !== null) return reply.code(426).send(refusalBody(refusal));
    return undefined;
  });
  registerReports(app, context);
  registerDisks(app, context);
  registerImageCalls(app, context);
  if (far) registerCredentials(app, context);
  registerObjectPermissions(app, context);
  const route_changes = new RouteChanges(db, context.hub);
  registerIngress(app, context, route_changes);
  registerHttpPorts(app, context, route_changes);
  registerOpenPort(app, context);
  if (!far) registerWeaknesses(app, context);
  if (far) registerPeers(app, context);
  registerHostCalls(app, context, {
    far,
    host: (headers) => admitHost(db, headers, far),
    ingress: (headers) => admitIngress(db, headers, far),
  });
  return app;
}

const JOIN_REFUSED =
  'The join token was used, or has expired. On the server, berth host rotate NAME --join prints a new one.';

/** The credentials of hosts on other machines. */
function registerCredentials(app: FastifyInstance, { db }: InternalContext): void {
  serve(app, ROUTES.join, async ({ host, body, request }) => {
    const join_hash = present(tokenHashIn(request.headers), 'token');
    if (!(await useJoinToken(db, join_hash, Buffer.from(body.credential_sha256, 'hex'))))
      throw new AppError('UNAUTHENTICATED', { message: JOIN_REFUSED });
    return { host_id: host.id };
  });
  serve(app, ROUTES.rotate, async ({ host, body }) => {
    await setNextCredential(db, host.id, Buffer.from(body.credential_sha256, 'hex'));
    return { host_id: host.id };
  });
}

function registerReports(app: FastifyInstance, context: InternalContext): void {
  const { db, hub, host_lease_ms, secrets, peers } = context;
  serve(app, ROUTES.lease, async ({ host, body }) => ({
    lease_ms: await renewLease(db, host.id, body.kept_ms, host_lease_ms),
  }));
  serve(app, ROUTES.heartbeat, async ({ host, body }) => {
    await recordHeartbeat(db, host.id, body.facts);
    await recordDisks(db, host.id, body.disks);
    if (host.is_next) await promoteNextCredential(db, host.id);
    const rotate = host.remote && (await isRotationDue(db, host.id));
    return {
      host_id: host.id,
      ...(peers && host.remote ? { control_planes: peers.places } : {}),
      ...(rotate ? { rotate } : {}),
    };
  });
  serve(app, ROUTES.poll, async ({ host, body, reply }) => {
    const read = async () => {
      const assignments = await listAssignments(db, secrets, host.id);
      return { etag: pollEtag(assignments), assignments };
    };
    return held(read, body.seen, reply, (look, signal) =>
      hub.waitFor('host', host.id, POLL_HOLD_MS, look, signal),
    );
  });
  serve(app, ROUTES.report, async ({ host, body }) => ({ outcome: await applyReport(db, host.id, body) }));
  serve(app, ROUTES.flush, async ({ host, body }) => ({ outcome: await recordFlush(db, host.id, body) }));
  serve(app, ROUTES.flushFailure, async ({ host, body }) => ({
    outcome: await recordFlushFailure(db, host.id, body),
  }));
  serve(app, ROUTES.keys, async ({ host, body }) => ({ outcome: await confirmKeys(db, host.id, body) }));
  serve(app, ROUTES.logins, async ({ host, body }) => ({ outcome: await recordLogins(db, host.id, body) }));
  serve(app, ROUTES.minutes, async ({ host, body }) => ({
    outcome: await recordMinutes(db, host.id, body),
  }));
  serve(app, ROUTES.denied, async ({ host, body }) => ({ outcome: await recordDenied(db, host.id, body) }));
  serve(app, ROUTES.userData, async ({ host, body }) => ({
    script: await readUserData(db, host.id, body.vm_id),
  }));
  serve(app, ROUTES.userDataGiven, async ({ host, body }) =>
    accepted(await markUserDataGiven(db, host.id, body.vm_id)),
  );
}

function registerDisks(app: FastifyInstance, { db, disk_keys }: InternalContext): void {
  const large = { bodyLimit: COMMIT_LIMIT_BYTES };
  serve(app, ROUTES.execs, async ({ host, body }) => {
    let known = body.execs.length === 0;
    for (const each of body.execs) known = (await recordExec(db, host.id, each)) || known;
    return accepted(known);
  });
  serve(app, ROUTES.commit, ({ host, body }) => commitGeneration(db, host.id, body), large);
  serve(app, ROUTES.lineage, ({ host, body }) => findLineage(db, host.id, body));
  serve(app, ROUTES.unknownVm, async ({ host, body }) => ({
    outcome: await tellOfUnknownVm(db, host.id, body),
  }));
  serve(app, ROUTES.bootOrder, async ({ host, body }) => ({
    outcome: await recordBootOrder(db, host.id, body),
  }));
  serve(app, ROUTES.objectStore, async () => ({ mark: await findStoreMark(db) }));
  serve(app, ROUTES.head, ({ host, body }) => readHead(db, disk_keys, host.id, body.instance_id));
  serve(app, ROUTES.dataKeys, ({ host, body }) => readDataKeys(db, disk_keys, host.id, body));
}

function registerIngress(
  app: FastifyInstance,
  { db, quotas, peers }: InternalContext,
  route_changes: RouteChanges,
): void {
  serveIngress(app, ROUTES.routes, async ({ ingress, body, request, reply }) => {
    for (const { host, port, problem } of body.blocked) {
      request.log.warn({ host, port, problem }, 'an SSH address cannot be opened');
    }
    return route_changes.answer(body, reply, (only) => listRoutes(db, ingress.host_id, only));
  });
  serveIngress(app, ROUTES.wake, async ({ body: { instance_id }, request }) => {
    try {
      return await transaction(db, (tx) => wakeVm(tx, quotas, instance_id));
    } catch (error) {
      if (!(error instanceof AppError) || !['QUOTA_EXCEEDED', 'UNAVAILABLE', 'CONFLICT'].includes(error.code))
        throw error;
      request.log.warn({ instance_id, reason: error.message }, 'a connection could not wake its VM');
      return { outcome: 'refused' as const, why: untrustedText(error.message) };
    }
  });
  serveIngress(app, ROUTES.activity, async ({ ingress, body }) => {
    await recordActivity(db, ingress.id, body);
    return peers && ingress.host_id === null ? { control_planes: peers.places } : {};
  });
}
