/**
 * The internal API: what agents and the ingress call (agent-api/types.ts). It is served on a unix socket (or
 * an address of its own in a fleet), never on the public listener, and every call carries a host's token.
 */
import { createHash } from 'node:crypto';
import Fastify, {
  type FastifyInstance,
  type FastifyReply,
  type FastifyRequest,
  LogController,
} from 'fastify';
import { POLL_HOLD_MS } from '../agent-api/client.ts';
import type {
  ActivityReport,
  RoutesRequest,
  RoutesResponse,
  WakeRequest,
  WakeResponse,
} from '../agent-api/ingress-types.ts';
import type {
  BootOrderReport,
  CommitRequest,
  FlushFailure,
  FlushReport,
  Heartbeat,
  HeartbeatResponse,
  KeysReport,
  LeaseRequest,
  LeaseResponse,
  LineageRequest,
  LoginsReport,
  ObjectStoreResponse,
  PollRequest,
  PollResponse,
  Report,
  ReportResponse,
  UserDataRequest,
  UserDataResponse,
} from '../agent-api/types.ts';
import { hashToken } from '../auth/tokens.ts';
import { transaction } from '../db/pool.ts';
import { commitGeneration } from '../disks/commit-generation.ts';
import { findStoreMark } from '../disks/mark-store.ts';
import { noteRootUse } from '../disks/note-root-use.ts';
import { readHead } from '../disks/read-head.ts';
import { findLineage, recordBootOrder, recordDirtyBytes } from '../disks/store.ts';
import { renewLease } from '../hosts/lease-store.ts';
import { findHostByToken, recordHeartbeat } from '../hosts/store.ts';
import { present } from '../lib/assert.ts';
import { AppError } from '../lib/errors.ts';
import type { HostId, InstanceId } from '../lib/ids.ts';
import { recordActivity } from '../vms/activity-store.ts';
import { applyKeys, applyReport } from '../vms/apply-report.ts';
import { listAssignments } from '../vms/assignment-store.ts';
import { recordFlush, recordFlushFailure } from '../vms/flushes.ts';
import { recordLogins } from '../vms/record-logins.ts';
import { listRoutes } from '../vms/route-store.ts';
import { markUserDataGiven, readUserData } from '../vms/user-data-store.ts';
import { wakeVm } from '../vms/vm-calls.ts';
import type { AppContext } from './context.ts';
import { endConnectionsAtClose } from './end-connections.ts';
import { sendError } from './errors.ts';
import { hangUp } from './hang-up.ts';
import { registerHostCalls } from './internal-calls.ts';
import { registerImageCalls } from './internal-images.ts';
import { type Installation, registerWeaknesses } from './internal-weaknesses.ts';

/** SSH connections to other machines take one each. */
const CONNECTIONS_OF_HOSTS = 20_000;
const BODY_LIMIT_BYTES = 16 * 1024 * 1024;
/** A disk of 1 TiB, flushed whole without anything to compress, is 177,000 segments: 30 MiB. */
const COMMIT_LIMIT_BYTES = 64 * 1024 * 1024;
/** A host that vanished says nothing; the SSH connections to it are found to be over by this. */
const KEEP_ALIVE = { keepAlive: true, keepAliveInitialDelay: 60_000 };

export interface InternalContext extends Pick<AppContext, 'db' | 'hub' | 'log' | 'disk_keys' | 'host_calls'> {
  /** Of hosts that are not the only one. */
  readonly host_lease_ms: number;
  /** For `berth doctor`; absent: it is told nothing. */
  readonly installation?: Installation;
}

declare module 'fastify' {
  interface FastifyRequest {
    host_id: HostId | null;
  }
}

/**
 * `tls`: for hosts on other machines. It serves them alone, and nothing of the ingress; without it, on a unix socket, all
 * that is on this machine.
 */
export function createInternalApp(
  context: InternalContext,
  tls: { readonly cert: Buffer; readonly key: Buffer } | null = null,
): FastifyInstance {
  const far = tls !== null;
  const { log } = context;
  const app = Fastify({
    loggerInstance: log as never,
    logController: new LogController({ disableRequestLogging: true }),
    bodyLimit: BODY_LIMIT_BYTES,
    keepAliveTimeout: 65_000,
    ...(tls ? { https: { ...tls, ...KEEP_ALIVE, minVersion: 'TLSv1.3' as const } } : {}),
  }) as unknown as FastifyInstance;
  app.setErrorHandler((error, request, reply) => sendError(error, request, reply));
  endConnectionsAtClose(app);
  app.decorateRequest('host_id', null);
  app.addHook('onRequest', async (request) => {
    request.host_id = await authenticateHost(context, request.headers.authorization, far);
  });
  registerReports(app, context);
  registerPolls(app, context);
  registerImageCalls(app, context, far);
  if (!far) registerIngress(app, context);
  if (!far && context.installation) registerWeaknesses(app, context.db, context.installation);
  if (far) app.server.maxConnections = CONNECTIONS_OF_HOSTS;
  registerHostCalls(app, context, {
    authenticate: (authorization) => authenticateHost(context, authorization, far),
    tunnels: !far,
  });
  return app;
}

/** @throws AppError UNAUTHENTICATED */
async function authenticateHost(
  { db }: InternalContext,
  authorization: string | undefined,
  far: boolean,
): Promise<HostId> {
  const token = /^Bearer (\S{1,200})$/.exec(authorization ?? '')?.[1];
  const host = token === undefined ? undefined : await findHostByToken(db, hashToken(token));
  // The token of this machine's own host never has to come from elsewhere.
  if (!host || (far && !host.remote)) throw new AppError('UNAUTHENTICATED');
  return host.id;
}

function hostOf(request: FastifyRequest): HostId {
  return present(request.host_id, 'host');
}

function registerReports(app: FastifyInstance, { db, disk_keys, host_lease_ms }: InternalContext): void {
  app.post<{ Body: LeaseRequest }>(
    '/internal/v1/lease',
    async (request): Promise<LeaseResponse> => ({
      lease_ms: await renewLease(db, hostOf(request), request.body.kept_ms, host_lease_ms),
    }),
  );
  app.post<{ Body: Heartbeat }>('/internal/v1/heartbeat', async (request): Promise<HeartbeatResponse> => {
    const host_id = hostOf(request);
    await recordHeartbeat(db, host_id, request.body.facts);
    for (const { instance_id, dirty_bytes, root } of request.body.disks) {
      await recordDirtyBytes(db, host_id, instance_id, dirty_bytes);
      if (root) await noteRootUse(db, host_id, instance_id, root);
    }
    return { host_id };
  });
  app.post<{ Body: Report }>(
    '/internal/v1/report',
    async (request): Promise<ReportResponse> => ({
      outcome: await applyReport(db, hostOf(request), request.body),
    }),
  );
  app.post<{ Body: FlushReport }>(
    '/internal/v1/flush',
    async (request): Promise<ReportResponse> => ({
      outcome: await recordFlush(db, hostOf(request), request.body),
    }),
  );
  app.post<{ Body: FlushFailure }>(
    '/internal/v1/flush-failure',
    async (request): Promise<ReportResponse> => ({
      outcome: await recordFlushFailure(db, hostOf(request), request.body),
    }),
  );
  app.post<{ Body: KeysReport }>(
    '/internal/v1/keys',
    async (request): Promise<ReportResponse> => ({
      outcome: await applyKeys(db, hostOf(request), request.body),
    }),
  );
  app.post<{ Body: LoginsReport }>(
    '/internal/v1/logins',
    async (request): Promise<ReportResponse> => ({
      outcome: await recordLogins(db, hostOf(request), request.body),
    }),
  );
  app.post<{ Body: CommitRequest }>(
    '/internal/v1/commit',
    { bodyLimit: COMMIT_LIMIT_BYTES },
    async (request) => commitGeneration(db, hostOf(request), request.body),
  );
  app.post<{ Body: LineageRequest }>('/internal/v1/lineage', async (request) =>
    findLineage(db, request.body),
  );
  app.post<{ Body: BootOrderReport }>(
    '/internal/v1/boot-order',
    async (request): Promise<ReportResponse> => ({
      outcome: await recordBootOrder(db, hostOf(request), request.body),
    }),
  );
  app.post('/internal/v1/object-store', async (): Promise<ObjectStoreResponse> => {
    return { mark: await findStoreMark(db) };
  });
  app.post<{ Body: UserDataRequest }>(
    '/internal/v1/user-data',
    async (request): Promise<UserDataResponse> => ({
      script: await readUserData(db, hostOf(request), request.body.vm_id),
    }),
  );
  app.post<{ Body: UserDataRequest }>(
    '/internal/v1/user-data-given',
    async (request): Promise<ReportResponse> => {
      await markUserDataGiven(db, hostOf(request), request.body.vm_id);
      return { outcome: 'accepted' };
    },
  );
  app.post<{ Body: { instance_id: InstanceId } }>('/internal/v1/head', async (request, reply) =>
    reply
      .type('application/json')
      .serializer(JSON.stringify)
      .send(await readHead(db, disk_keys, hostOf(request), request.body.instance_id)),
  );
}

function registerPolls(app: FastifyInstance, { db, hub }: InternalContext): void {
  app.post<{ Body: PollRequest }>('/internal/v1/poll', async (request, reply): Promise<PollResponse> => {
    const host_id = hostOf(request);
    const read = async () => {
      const assignments = await listAssignments(db, host_id);
      return { etag: etagOf(assignments), assignments };
    };
    return held(read, request, reply, (look, signal) =>
      hub.waitFor('host', host_id, POLL_HOLD_MS, look, signal),
    );
  });
}

function registerIngress(app: FastifyInstance, { db, hub }: InternalContext): void {
  app.post<{ Body: RoutesRequest }>(
    '/internal/v1/routes',
    async (request, reply): Promise<RoutesResponse> => {
      for (const { port, problem } of request.body.blocked) {
        request.log.warn({ port, problem }, 'an SSH port cannot be opened');
      }
      const read = async () => {
        const routes = await listRoutes(db);
        return { etag: etagOf(routes), routes };
      };
      return held(read, request, reply, (look, signal) =>
        hub.waitFor('routes', '', POLL_HOLD_MS, look, signal),
      );
    },
  );
  app.post<{ Body: WakeRequest }>('/internal/v1/wake', async (request): Promise<WakeResponse> => {
    const { instance_id } = request.body;
    try {
      return await transaction(db, (tx) => wakeVm(tx, instance_id));
    } catch (error) {
      if (!(error instanceof AppError) || !['QUOTA_EXCEEDED', 'UNAVAILABLE', 'CONFLICT'].includes(error.code))
        throw error;
      request.log.warn({ instance_id, reason: error.message }, 'a connection could not wake its VM');
      return { outcome: 'refused', why: error.message };
    }
  });
  app.post<{ Body: ActivityReport }>('/internal/v1/activity', async (request) => {
    await recordActivity(db, request.body);
    return {};
  });
}

/** Holds a poll open until its answer differs from the one that the caller has seen, or the time is over. */
async function held<T extends { etag: string }>(
  read: () => Promise<T>,
  request: FastifyRequest<{ Body: { seen: string | null } }>,
  reply: FastifyReply,
  wait: (look: () => Promise<T | undefined>, signal: AbortSignal) => Promise<T | undefined>,
): Promise<T> {
  const look = async () => {
    const answer = await read();
    return answer.etag === request.body.seen ? undefined : answer;
  };
  return (await wait(look, hangUp(reply))) ?? (await read());
}

/** Tells one answer of a poll from another. */
function etagOf(value: unknown): string {
  return createHash('sha256').update(JSON.stringify(value)).digest('base64url').slice(0, 22);
}
