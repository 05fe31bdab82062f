/**
 * Serves one call of a host or an ingress to the internal API (protocol/routes.ts): identifies the caller by its token,
 * validates the body against the route's schema, and answers JSON. `held` holds a long poll until its answer changes.
 */
import { createHash } from 'node:crypto';
import type { IncomingHttpHeaders } from 'node:http';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import type { TSchema } from 'typebox';
import { protocolOf, refusalOf } from '../../protocol/protocol.ts';
import type { AgentRoute } from '../../protocol/routes.ts';
import { type Of, violationOf } from '../../protocol/schemas.ts';
import type { ObjectRequest, SignedRequest } from '../../protocol/types.ts';
import { present } from '../../shared/assert.ts';
import type { ConnectionBudget } from '../../shared/connection-budget.ts';
import { AppError } from '../../shared/errors.ts';
import type { HostId, IngressId } from '../../shared/ids.ts';
import type { AppContext } from '../context.ts';
import type { Db } from '../db/pool.ts';
import { findIngressByToken, setIngressProtocol } from '../fleet/control-plane-store.ts';
import { findHostByJoinToken, findHostByToken } from '../fleet/credential-store.ts';
import { setProtocol } from '../fleet/host-store.ts';
import type { Peers } from '../fleet/peers.ts';
import { disconnectSignal } from '../http/connections.ts';
import { hashToken } from '../identity/tokens.ts';

declare module 'fastify' {
  interface FastifyRequest {
    calling_host: CallingHost | null;
    calling_ingress: CallingIngress | null;
    /** Another control plane has sent it. */
    is_of_peer: boolean;
  }
}

export interface InternalCall<Body> {
  readonly body: Body;
  readonly request: FastifyRequest;
  readonly reply: FastifyReply;
}

export function accepted(is_so: boolean): { outcome: 'accepted' | 'fenced' } {
  return { outcome: is_so ? 'accepted' : 'fenced' };
}

/** A call of a host. */
export function serve<Request extends TSchema, Response extends TSchema>(
  app: FastifyInstance,
  route: AgentRoute<Request, Response>,
  handle: (call: InternalCall<Of<Request>> & { readonly host: CallingHost }) => Promise<Of<Response>>,
  limits: { readonly bodyLimit?: number } = {},
): void {
  register(
    app,
    route,
    (call) => handle({ ...call, host: present(call.request.calling_host, 'host') }),
    limits,
  );
}

/** A call of an ingress. */
export function serveIngress<Request extends TSchema, Response extends TSchema>(
  app: FastifyInstance,
  route: AgentRoute<Request, Response>,
  handle: (call: InternalCall<Of<Request>> & { readonly ingress: CallingIngress }) => Promise<Of<Response>>,
): void {
  register(app, route, (call) =>
    handle({ ...call, ingress: present(call.request.calling_ingress, 'ingress') }),
  );
}

function register<Request extends TSchema, Response extends TSchema>(
  app: FastifyInstance,
  route: AgentRoute<Request, Response>,
  handle: (call: InternalCall<Of<Request>>) => Promise<Of<Response>>,
  { bodyLimit }: { readonly bodyLimit?: number } = {},
): void {
  const options = { schema: { body: route.request }, ...(bodyLimit === undefined ? {} : { bodyLimit }) };
  app.post(route.path, options, async (request, reply) => {
    // We stood still, or waited for the database. Whoever called has repeated this elsewhere, and may have gone on since.
    if (request.raw.socket.destroyed) throw new AppError('UNAVAILABLE');
    const answer = await handle({ body: request.body as Of<Request>, request, reply });
    // Not by Fastify: it sends no body for null, and its serialiser is slower for unions.
    return reply.type('application/json').send(JSON.stringify(answer));
  });
}

/** For Fastify's `setValidatorCompiler`. */
export function checkedBy(schema: TSchema): (value: unknown) => { error: Error } | { value: unknown } {
  return (value) => {
    const problem = violationOf(schema, value);
    return problem === null ? { value } : { error: new AppError('INVALID_REQUEST', { message: problem }) };
  };
}

// The caller is a host's agent or an ingress. Each is known by its token, which is valid for its own calls only.

export interface CallingHost {
  readonly id: HostId;
  /** On another machine. */
  readonly remote: boolean;
  /** It came with the credential that replaces the present one. */
  readonly is_next: boolean;
}

export interface CallingIngress {
  readonly id: IngressId;
  /** The host of the same machine, whose VMs it dials itself; null: it is on another machine. */
  readonly host_id: HostId | null;
}

/** The caller, and why it is refused. */
interface Admitted<Caller> {
  readonly caller: Caller;
  readonly refusal: string | null;
}

/** `far`: it came over TLS. `joins`: with a join token. Keeps the caller's protocol version for `berth host ls`. @throws AppError UNAUTHENTICATED */
export async function admitHost(
  db: Db,
  headers: IncomingHttpHeaders,
  far: boolean,
  joins = false,
): Promise<Admitted<CallingHost>> {
  const token_hash = tokenHashIn(headers);
  const find = joins ? findHostByJoinToken : findHostByToken;
  const host = token_hash && (await find(db, token_hash));
  // The token of this machine's host is valid on the unix socket only, and that of any other host only over TLS.
  if (!host || far !== host.remote) throw new AppError('UNAUTHENTICATED');
  const { id, remote, is_next } = host;
  const protocol = protocolOf(headers);
  if (protocol !== host.protocol) await setProtocol(db, id, protocol);
  return { caller: { id, remote, is_next }, refusal: refusalOf(protocol) };
}

/** The same for an ingress. */
export async function admitIngress(
  db: Db,
  headers: IncomingHttpHeaders,
  far: boolean,
): Promise<Admitted<CallingIngress>> {
  const token_hash = tokenHashIn(headers);
  const ingress = token_hash && (await findIngressByToken(db, token_hash));
  if (!ingress || far !== (ingress.host_id === null)) throw new AppError('UNAUTHENTICATED');
  const { id, host_id } = ingress;
  const protocol = protocolOf(headers);
  if (protocol !== ingress.protocol) await setIngressProtocol(db, id, protocol);
  return { caller: { id, host_id }, refusal: refusalOf(protocol) };
}

export function tokenHashIn(headers: IncomingHttpHeaders): Buffer | undefined {
  const token = /^Bearer (\S{1,200})$/.exec(headers.authorization ?? '')?.[1];
  return token === undefined ? undefined : hashToken(token);
}

type Shared =
  | 'db'
  | 'hub'
  | 'log'
  | 'disk_keys'
  | 'host_calls'
  | 'quotas'
  | 'installation'
  | 'http'
  | 'secrets'
  | 'metrics'
  | 'oidc';

export interface InternalContext extends Pick<AppContext, Shared> {
  /** The lease of a host that is not the only one. */
  readonly host_lease_ms: number;
  /** Signs a request to the bucket, for a host on another machine. Absent: the objects are in a folder. */
  readonly sign?: (request: ObjectRequest) => Promise<SignedRequest>;
  /** The other control planes; absent: there can be none. */
  readonly peers?: Pick<Peers, 'isPeer' | 'places'>;
  /** Of this listener; absent: it has no bound. */
  readonly connections?: Pick<ConnectionBudget, 'trust'>;
}

/** Holds a poll until its answer differs from the one that the caller has seen, or the time is over. */
export async function held<T extends { etag: string }>(
  read: () => Promise<T>,
  seen: string | null,
  reply: FastifyReply,
  wait: (look: () => Promise<T | undefined>, signal: AbortSignal) => Promise<T | undefined>,
): Promise<T> {
  let newest: T | undefined;
  const look = async () => {
    newest = await read();
    return newest.etag === seen ? undefined : newest;
  };
  const changed = await wait(look, disconnectSignal(reply));
  return changed ?? present(newest, 'an answer: it looks at least once');
}

/** Identifies the answer of a poll. */
export function pollEtag(value: unknown): string {
  return createHash('sha256').update(JSON.stringify(value)).digest('base64url').slice(0, 22);
}
