/**
 * Idempotency-Key. The key is claimed, the resource made and the answer kept in one transaction, so a request either
 * happened with its answer or did not happen. While one is served, others with its key are told so at once
 * (an advisory lock of the transaction, never a wait); once it has been, all get its answer. Only success is kept, for a day, sealed under the server's key.
 */
import { createHash } from 'node:crypto';
import type { FastifyRequest } from 'fastify';
import type { Principal } from '../auth/principal.ts';
import { findAnswer, type KeyName, tryLockKey, upsertAnswer } from '../db/idempotency-store.ts';
import type { Tx } from '../db/pool.ts';
import { canonicalJson } from '../lib/canonical-json.ts';
import { AppError, invalid } from '../lib/errors.ts';
import type { Sealer } from '../lib/seal.ts';

export interface Answer<T = unknown> {
  readonly status: number;
  readonly body: T;
}

/** The header's key, bare or quoted; null when there is none (absent, empty and `null` mean that). */
export function readIdempotencyKey(request: FastifyRequest): string | null {
  const header = request.headers['idempotency-key'];
  const text = (Array.isArray(header) ? header.join(',') : (header ?? '')).trim();
  if (text === '' || text === 'null') return null;
  const quoted = /^"(.*)"$/.exec(text);
  const key = quoted ? (quoted[1] ?? '') : text;
  if (!/^[\x20-\x7e]{1,255}$/.test(key))
    throw invalid('Idempotency-Key', 'must be 1 to 255 printable ASCII characters');
  return key;
}

export interface Claim extends KeyName {
  readonly fingerprint: Buffer;
}

/** Who a key belongs to: an API key by its id, which outlives rotation; a session by its user, whom it acts for. */
export function claimOf(request: FastifyRequest, principal: Principal, key: string): Claim {
  const { credential } = principal;
  const canonical = canonicalJson([request.params ?? {}, request.query ?? {}, request.body ?? {}]);
  return {
    org_id: principal.org_id,
    principal: credential.kind === 'session' ? credential.user_id : credential.id,
    route: `${request.method} ${request.routeOptions.url ?? ''}`,
    key,
    fingerprint: createHash('sha256').update(canonical).digest(),
  };
}

function nameOf(claim: Claim): string {
  return JSON.stringify([claim.org_id, claim.principal, claim.route, claim.key]);
}

/** What was answered before to the key. @throws AppError IDEMPOTENCY_KEY_REUSED */
async function keptAnswer(tx: Tx, sealer: Sealer, wanted: Claim): Promise<Answer | null> {
  const found = await findAnswer(tx, wanted);
  if (!found) return null;
  if (!found.fingerprint.equals(wanted.fingerprint)) throw new AppError('IDEMPOTENCY_KEY_REUSED');
  const text = sealer.open(found.response, nameOf(wanted));
  if (text === null) throw new Error('a kept answer does not open: the secret key has changed');
  return { status: found.status, body: JSON.parse(text) as unknown };
}

/**
 * Claims the key for this transaction. Answers what was answered before, if that still holds, or null: then do the
 * work and `keep` it. Replays need no claim: any number of them get the answer at once.
 * @throws AppError IDEMPOTENCY_IN_PROGRESS, IDEMPOTENCY_KEY_REUSED
 */
export async function claim(
  tx: Tx,
  sealer: Sealer,
  wanted: Claim,
  holds: (tx: Tx, kept: unknown) => Promise<boolean>,
): Promise<Answer | null> {
  const digest = createHash('sha256').update(nameOf(wanted)).digest();
  const locked = await tryLockKey(tx, digest);
  const kept = await keptAnswer(tx, sealer, wanted);
  if (kept && (await holds(tx, kept.body))) return kept;
  if (!locked) throw new AppError('IDEMPOTENCY_IN_PROGRESS', { retry_after_seconds: 1 });
  return null;
}

/** Keeps a successful answer. */
export async function keep(tx: Tx, sealer: Sealer, wanted: Claim, answer: Answer): Promise<void> {
  const response = sealer.seal(JSON.stringify(answer.body), nameOf(wanted));
  await upsertAnswer(tx, wanted, { fingerprint: wanted.fingerprint, status: answer.status, response });
}
