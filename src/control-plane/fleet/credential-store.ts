/**
 * SQL of the credentials by which hosts authenticate, stored as hashes. A host on another machine joins with a token:
 *
 *   join token ── join ─▶ credential ── rotate ─▶ credential, next ── a heartbeat with the next one ─▶ credential
 *
 * A join token works once and expires. The host makes its credentials itself and sends only their hashes. So if an
 * answer is lost, the host repeats the call with the same credential, with the same result.
 */
import { randomBytes } from 'node:crypto';
import { sql } from 'kysely';
import type { HostId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

const JOIN_HOURS = 24;
/** A host replaces its credential after so long. */
const ROTATE_DAYS = 30;

export interface KnownHost {
  readonly id: HostId;
  readonly name: string;
  readonly remote: boolean;
  readonly protocol: number | null;
  /** It came with the credential that replaces the present one. */
  readonly is_next: boolean;
}

export async function findHostByToken(tx: Tx, token_hash: Buffer): Promise<KnownHost | undefined> {
  return tx
    .selectFrom('hosts')
    .select(['id', 'name', 'remote', 'protocol', sql<boolean>`token_hash <> ${token_hash}`.as('is_next')])
    .where((eb) => eb.or([eb('token_hash', '=', token_hash), eb('next_token_hash', '=', token_hash)]))
    .where('removed_at', 'is', null)
    .executeTakeFirst();
}

/** Also where the token was used or has expired: {@link useJoinToken} decides. */
export async function findHostByJoinToken(tx: Tx, join_hash: Buffer): Promise<KnownHost | undefined> {
  return tx
    .selectFrom('hosts')
    .select(['id', 'name', 'remote', 'protocol', sql<boolean>`false`.as('is_next')])
    .where('join_hash', '=', join_hash)
    .where('removed_at', 'is', null)
    .executeTakeFirst();
}

/** True if the host has this credential now. */
export async function useJoinToken(tx: Tx, join_hash: Buffer, credential: Buffer): Promise<boolean> {
  const joined = await tx
    .updateTable('hosts')
    .set({
      token_hash: credential,
      next_token_hash: null,
      join_expires_at: null,
      credential_since: sql`now()`,
      rotate_requested: false,
    })
    .where('join_hash', '=', join_hash)
    .where('join_expires_at', '>', sql<Date>`now()`)
    .where('removed_at', 'is', null)
    .executeTakeFirst();
  if (joined.numUpdatedRows === 1n) return true;
  const again = await tx
    .selectFrom('hosts')
    .select('id')
    .where('join_hash', '=', join_hash)
    .where('token_hash', '=', credential)
    .where('removed_at', 'is', null)
    .executeTakeFirst();
  return again !== undefined;
}

/** Revokes the host's credential: it joins with the new token. */
export async function setJoinToken(tx: Tx, id: HostId, join_hash: Buffer): Promise<void> {
  await tx
    .updateTable('hosts')
    .set({ ...newJoin(join_hash), token_hash: randomBytes(32), next_token_hash: null })
    .where('id', '=', id)
    .execute();
}

/** The columns of a new join token. */
export function newJoin(join_hash: Buffer) {
  return { join_hash, join_expires_at: sql<Date>`now() + make_interval(hours => ${JOIN_HOURS})` };
}

/** The host replaces its credential with its next heartbeat. */
export async function requestRotation(tx: Tx, id: HostId): Promise<void> {
  await tx.updateTable('hosts').set({ rotate_requested: true }).where('id', '=', id).execute();
}

export async function setNextCredential(tx: Tx, id: HostId, next: Buffer): Promise<void> {
  await tx.updateTable('hosts').set({ next_token_hash: next }).where('id', '=', id).execute();
}

/** The host has used its next credential: the one before is revoked. */
export async function promoteNextCredential(tx: Tx, id: HostId): Promise<void> {
  await tx
    .updateTable('hosts')
    .set({
      token_hash: sql<Buffer>`next_token_hash`,
      next_token_hash: null,
      credential_since: sql`now()`,
      rotate_requested: false,
    })
    .where('id', '=', id)
    .where('next_token_hash', 'is not', null)
    .execute();
}

/** Whether a host on another machine is to replace its credential now. */
export async function isRotationDue(tx: Tx, id: HostId): Promise<boolean> {
  const row = await tx
    .selectFrom('hosts')
    .select('id')
    .where('id', '=', id)
    .where('remote', '=', true)
    .where((eb) =>
      eb.or([
        eb('rotate_requested', '=', true),
        eb('credential_since', '<', sql<Date>`now() - make_interval(days => ${ROTATE_DAYS})`),
      ]),
    )
    .executeTakeFirst();
  return row !== undefined;
}
