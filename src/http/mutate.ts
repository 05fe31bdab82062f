/**
 * How every changing request runs: one transaction that claims the Idempotency-Key (where the route takes one), does
 * the work, writes the audit entry, and keeps the answer. Handlers give the work and what it is called.
 */
import type { FastifyReply, FastifyRequest } from 'fastify';
import type { AuditLog } from '../audit/append.ts';
import { actorOf, type Principal } from '../auth/principal.ts';
import { holdSession } from '../auth/store.ts';
import { blindTransaction, DisprovedError, type Proof } from '../db/blind-writes.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { AppError } from '../lib/errors.ts';
import type { Sealer } from '../lib/seal.ts';
import { principalOf } from './access.ts';
import { type Claim, claim, claimOf, keep, readIdempotencyKey } from './idempotency.ts';

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
}

export interface Mutation {
  /** As the audit log has it. */
  readonly action: string;
  /**
   * Whether the work can be done for the principal without asking the database anything: what it goes by then, which its
   * transaction proves. Null: it has to ask.
   */
  readonly blind?: (principal: Principal) => Proof | null;
  /** Of work that goes on after its answer was kept: whether it has not failed since. If it has, it is done again. */
  readonly holds?: (tx: Tx, kept: unknown) => Promise<boolean>;
}

export interface Outcome<Status extends number, Body> {
  readonly status: Status;
  readonly body: Body;
  /** The id of what was changed. */
  readonly target: string | null;
  /** For the audit log: what is worth knowing, never a secret. */
  readonly data?: Record<string, unknown>;
  /** Nothing was changed: no audit entry. */
  readonly unchanged?: boolean;
}

async function always(): Promise<boolean> {
  return true;
}

/** Runs `work` and answers with its outcome, or with what was answered before to the same key. */
export async function mutate<Status extends number, Body>(
  context: MutationContext,
  request: FastifyRequest,
  reply: FastifyReply,
  mutation: Mutation,
  work: (tx: Tx, principal: Principal, blind: boolean) => Promise<Outcome<Status, Body>>,
): Promise<{ status: Status; body: Body }> {
  const change = async (tx: Tx, principal: Principal, wanted: Claim | null, blind = false) => {
    const { status, body, target, data, unchanged } = await work(tx, principal, blind);
    if (wanted) await keep(tx, context.idempotency, wanted, { status, body });
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
    return { status, body };
  };
  const key = request.routeOptions.config.idempotent === true ? readIdempotencyKey(request) : null;
  const blindly = async (principal: Principal, proofs: readonly Proof[]) => {
    const proof = key === null ? mutation.blind?.(principal) : null;
    if (!proof) return null;
    const work_of_it = (tx: Tx) => change(tx, principal, null, true);
    return blindTransaction(context.db, work_of_it, [...proofs, proof]);
  };
  const { supposed } = request;
  if (supposed) {
    try {
      const done = await blindly(supposed.principal, [supposed.proof]);
      if (done) {
        request.principal = supposed.principal;
        request.supposed = null;
        return done;
      }
    } catch (error) {
      // Nothing was done. What is refused to one who is only supposed to call is refused to nobody yet.
      if (!(error instanceof DisprovedError || error instanceof AppError)) throw error;
    }
  }
  await supposed?.settle();
  const principal = principalOf(request);
  // Of an API key a foreign key proves that it is still there; a session is held below.
  if (principal.credential.kind !== 'session') {
    const done = await blindly(principal, []).catch((error: unknown) => {
      // Nothing was done: the work asks the database after all.
      if (!(error instanceof DisprovedError)) throw error;
      return null;
    });
    if (done) return done;
  }
  const wanted = key === null ? null : claimOf(request, principal, key);
  return transaction(context.db, async (tx) => {
    // It may have ended since the request's head: by a password reset that is to leave nothing of a thief.
    if (principal.credential.kind === 'session') await holdSession(tx, principal.credential.id);
    const before = wanted && (await claim(tx, context.idempotency, wanted, mutation.holds ?? always));
    if (!before) return change(tx, principal, wanted);
    reply.header('idempotency-replayed', 'true');
    return before as { status: Status; body: Body };
  });
}
