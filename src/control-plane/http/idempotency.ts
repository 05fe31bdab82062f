/**
 * Stores the responses of requests that have an Idempotency-Key, and finds them for repeated requests.
 *
 * - One transaction claims the key, does the work and stores the response: all three happen, or none.
 * - While a request runs, others with its key fail at once: they find its advisory lock, and do not wait. Later ones
 *   get its response.
 * - Only successes are stored: for a day, encrypted under a key of the server.
 */
import { createHash } from 'node:crypto';
import type { FastifyRequest } from 'fastify';
import { sql } from 'kysely';
import { canonicalJson } from '../../shared/canonical-json.ts';
import { AppError, invalid } from '../../shared/errors.ts';
import type { OrgId } from '../../shared/ids.ts';
import type { Sealer } from '../../shared/seal.ts';
import type { Tx } from '../db/pool.ts';
import type { Principal } from '../identity/principal.ts';

const KEPT_HOURS = 24;

/** A key is unique per principal and route. */
export interface KeyName {
  readonly org_id: OrgId;
  readonly principal: string;
  readonly route: string;
  readonly key: string;
}

/** Takes a transaction-scoped advisory lock named by 64 bits of `digest`; false, at once, if another transaction has it. */
async function tryLockKey(tx: Tx, digest: Buffer): Promise<boolean> {
  const { rows } = await sql<{ locked: boolean }>`
    select pg_try_advisory_xact_lock(${digest.readInt32BE(0)}, ${digest.readInt32BE(4)}) as locked`.execute(
    tx,
  );
  return rows[0]?.locked === true;
}

async function findResponse(tx: Tx, { org_id, principal, route, key }: KeyName) {
  return tx
    .selectFrom('idempotency_keys')
    .select(['fingerprint', 'status', 'response'])
    .where('org_id', '=', org_id)
    .where('principal', '=', principal)
    .where('route', '=', route)
    .where('key', '=', key)
    .where('expires_at', '>', sql<Date>`now()`)
    .executeTakeFirst();
}

/** Replaces an expired one. */
async function upsertResponse(
  tx: Tx,
  { org_id, principal, route, key }: KeyName,
  stored: { readonly fingerprint: Buffer; readonly status: number; readonly response: Buffer },
): Promise<void> {
  const row = { ...stored, expires_at: sql<Date>`now() + make_interval(hours => ${KEPT_HOURS})` };
  await tx
    .insertInto('idempotency_keys')
    .values({ org_id, principal, route, key, ...row })
    .onConflict((conflict) => conflict.columns(['org_id', 'principal', 'route', 'key']).doUpdateSet(row))
    .execute();
}

export async function deleteExpiredResponses(tx: Tx): Promise<void> {
  await tx.deleteFrom('idempotency_keys').where('expires_at', '<', sql<Date>`now()`).execute();
}

/** The header's key, bare or quoted; null if it is absent, empty or `null`. */
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

/** A key belongs to the API key that sends it, by its id, which outlives rotation; in a session it belongs to the user. */
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

export interface StoredResponse {
  readonly status: number;
  readonly body: unknown;
}

export interface Claim extends KeyName {
  /** Of the request: a replay must be the same. */
  readonly fingerprint: Buffer;
}

function nameOf(claim: Claim): string {
  return JSON.stringify([claim.org_id, claim.principal, claim.route, claim.key]);
}

/** @throws AppError IDEMPOTENCY_KEY_REUSED */
async function storedResponse(tx: Tx, sealer: Sealer, wanted: Claim): Promise<StoredResponse | null> {
  const found = await findResponse(tx, wanted);
  if (!found) return null;
  if (!found.fingerprint.equals(wanted.fingerprint)) throw new AppError('IDEMPOTENCY_KEY_REUSED');
  const text = sealer.open(found.response, nameOf(wanted));
  if (text === null) throw new Error('a stored response does not open with the root key');
  return { status: found.status, body: JSON.parse(text) as unknown };
}

/**
 * Claims the key for this transaction. Returns the stored response if it still holds; on null, do the work and call
 * `storeResponse`. Replays need no claim: any number of them get the response at once.
 * @throws AppError IDEMPOTENCY_IN_PROGRESS, IDEMPOTENCY_KEY_REUSED
 */
export async function claim(
  tx: Tx,
  sealer: Sealer,
  wanted: Claim,
  holds: (tx: Tx, stored: unknown) => Promise<boolean>,
): Promise<StoredResponse | null> {
  const digest = createHash('sha256').update(nameOf(wanted)).digest();
  const locked = await tryLockKey(tx, digest);
  const stored = await storedResponse(tx, sealer, wanted);
  if (stored && (await holds(tx, stored.body))) return stored;
  if (!locked) throw new AppError('IDEMPOTENCY_IN_PROGRESS', { retry_after_seconds: 1 });
  return null;
}

export async function storeResponse(
  tx: Tx,
  sealer: Sealer,
  wanted: Claim,
  { status, body }: StoredResponse,
): Promise<void> {
  const response = sealer.seal(JSON.stringify(body), nameOf(wanted));
  await upsertResponse(tx, wanted, { fingerprint: wanted.fingerprint, status, response });
}
