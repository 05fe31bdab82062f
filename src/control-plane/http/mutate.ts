/**
 * `mutate` runs a request that changes something, in one transaction: it claims the Idempotency-Key (if the route takes
 * one), does the handler's work, stores the response for repeated requests, and writes the audit entry. It also counts
 * a principal's changes. `requireMatch` refuses a change if the resource has another ETag than `If-Match` names.
 */
import { hash } from 'node:crypto';
import type { TypeBoxTypeProvider } from '@fastify/type-provider-typebox';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { assert } from '../../shared/assert.ts';
import { canonicalJson } from '../../shared/canonical-json.ts';
import { AppError } from '../../shared/errors.ts';
import type { OrgId, ServiceAccountId, UserId } from '../../shared/ids.ts';
import type { Sealer } from '../../shared/seal.ts';
import { Turns } from '../../shared/turns.ts';
import type { AuditLog } from '../audit/append.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { actorOf, type Principal } from '../identity/principal.ts';
import { holdSession } from '../identity/store.ts';
import { principalOf } from './access.ts';
import { claim, claimOf, readIdempotencyKey, storeResponse } from './idempotency.ts';
import { ChangeCounts, type RequestLimits } from './rate-limits.ts';

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The route takes an Idempotency-Key. */
    idempotent?: boolean;
  }
}

export interface MutationContext {
  readonly db: Db;
  readonly audit: AuditLog;
  readonly idempotency: Sealer;
  readonly rate_limits: RequestLimits | null;
}

export interface Mutation {
  /** The name in the audit log. */
  readonly action: string;
  /**
   * Whether it counts to the changes of an hour. Absent: unless it is a DELETE. What removes or stops something is bounded by what was
   * made or started, so that it goes on when a key floods the account.
   */
  readonly counts?: boolean;
  /** Whether a stored response is still valid. False if work that continued after it has failed since: then a replay runs again. */
  readonly holds?: (tx: Tx, kept: unknown) => Promise<boolean>;
}

export interface MutationOutcome<Status extends number, Body> {
  readonly status: Status;
  readonly body: Body;
  /** The id of the changed resource. */
  readonly target: string | null;
  /** For the audit log; never a secret. */
  readonly data?: Record<string, unknown>;
  /** Nothing changed, so no audit entry is written. */
  readonly unchanged?: boolean;
}

async function always(): Promise<boolean> {
  return true;
}

/**
 * Changes of an organisation often wait for one row, and hold a connection to the database each. At most these many of one
 * organisation do at a time, so that the others find a connection.
 */
const CHANGES_AT_A_TIME = 5;
const turns = new Turns<OrgId>(CHANGES_AT_A_TIME);
const changes = new ChangeCounts();

/** Runs `work` and returns its outcome, or the stored response of the same key. */
export async function mutate<Status extends number, Body>(
  context: MutationContext,
  request: FastifyRequest,
  reply: FastifyReply,
  mutation: Mutation,
  work: (tx: Tx, principal: Principal) => Promise<MutationOutcome<Status, Body>>,
): Promise<{ status: Status; body: Body }> {
  const principal = principalOf(request);
  const key = request.routeOptions.config.idempotent === true ? readIdempotencyKey(request) : null;
  const wanted = key === null ? null : claimOf(request, principal, key);
  let is_new = false;
  const change = async (tx: Tx): Promise<{ status: Status; body: Body }> => {
    // The session may have ended since it was authenticated: a password reset must leave nothing to a thief.
    if (principal.credential.kind === 'session') await holdSession(tx, principal.credential.id);
    const before = wanted && (await claim(tx, context.idempotency, wanted, mutation.holds ?? always));
    if (before) {
      is_new = false;
      reply.header('idempotency-replayed', 'true');
      return before as { status: Status; body: Body };
    }
    const { status, body, target, data, unchanged } = await work(tx, principal);
    if (wanted) await storeResponse(tx, context.idempotency, wanted, { status, body });
    if (unchanged !== true) {
      await context.audit.append(tx, principal.org_id, {
        actor: actorOf(principal),
        action: mutation.action,
        target,
        ip: request.ip,
        request_id: request.id,
        data: { credential: principal.credential.id, ...data },
      });
    }
    is_new = unchanged !== true || wanted !== null;
    return { status, body };
  };
  const limit = context.rate_limits?.changes;
  const counts = limit !== undefined && (mutation.counts ?? request.method !== 'DELETE');
  const actor = actorOf(principal);
  return turns.take(principal.org_id, async () => {
    if (counts) changes.require(actor, limit);
    const outcome = await transaction(context.db, change);
    if (counts && is_new) changes.add(actor);
    return outcome;
  });
}

/** Writes an audit entry in another organisation than the request's: one just created or joined. */
export async function appendAudit(
  { audit }: Pick<MutationContext, 'audit'>,
  tx: Tx,
  request: FastifyRequest,
  org_id: OrgId,
  entry: {
    readonly action: string;
    readonly target: string | null;
    readonly data?: Record<string, unknown>;
  },
): Promise<void> {
  const principal = principalOf(request);
  const data = { credential: principal.credential.id, ...entry.data };
  await appendAuditOf({ audit }, tx, request, org_id, { actor: actorOf(principal), ...entry, data });
}

/** Writes an audit entry for a caller without a credential, who uses a mailed token. */
export async function appendAuditOf(
  { audit }: Pick<MutationContext, 'audit'>,
  tx: Tx,
  request: FastifyRequest,
  org_id: OrgId,
  entry: {
    readonly actor: UserId | ServiceAccountId;
    readonly action: string;
    readonly target: string | null;
    readonly data?: Record<string, unknown>;
  },
): Promise<void> {
  const { actor, action, target, data = {} } = entry;
  await audit.append(tx, org_id, { actor, action, target, ip: request.ip, request_id: request.id, data });
}

// ETag and If-Match (RFC 9110, sections 8.8.3 and 13.1.1): a change is refused if the resource has changed since.

/** A strong validator of the fields of a resource that calls can change. */
export function etagOf(value: unknown): string {
  return `"${hash('sha256', canonicalJson(value), 'base64url').slice(0, 22)}"`;
}

export function setEtag(reply: FastifyReply, value: unknown): void {
  assert(reply.request.routeOptions.config.etag === true, 'the route declares its ETag');
  reply.header('etag', etagOf(value));
}

/** @throws AppError PRECONDITION_FAILED where If-Match names another state */
export function requireMatch(request: FastifyRequest, value: unknown): void {
  const header = request.headers['if-match'];
  if (header === undefined) return;
  const wanted = header.split(',').map((tag) => tag.trim());
  if (!wanted.includes('*') && !wanted.includes(etagOf(value))) throw new AppError('PRECONDITION_FAILED');
}

/** The same server; a handler's request and reply have the types of its route's schemas. */
export function typed(app: FastifyInstance) {
  return app.withTypeProvider<TypeBoxTypeProvider>();
}
export type App = ReturnType<typeof typed>;
