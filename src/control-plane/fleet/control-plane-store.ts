/** The control planes that others reach, by the database's clock. */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';

/** One that was not seen for so long counts as ended. */
const LIVE_SECONDS = 15;

export interface ControlPlane {
  readonly id: string;
  readonly url: string;
  readonly fingerprint: string;
}

/** Inserts it, or says that it lives. */
export async function noteAlive(tx: Tx, { id, url, fingerprint }: ControlPlane): Promise<void> {
  await tx
    .insertInto('control_planes')
    .values({ id, url, fingerprint })
    .onConflict((conflict) => conflict.column('id').doUpdateSet({ seen_at: sql`now()` }))
    .execute();
}

/** Those that ended without saying so, and the earlier processes at this address. */
export async function deleteEnded(tx: Tx, { id, url }: ControlPlane): Promise<void> {
  await tx
    .deleteFrom('control_planes')
    .where('id', '!=', id)
    .where((eb) => eb.or([eb('url', '=', url), eb.not(isLive())]))
    .execute();
}

export async function deleteControlPlane(tx: Tx, id: string): Promise<void> {
  await tx.deleteFrom('control_planes').where('id', '=', id).execute();
}

export async function listLive(tx: Tx): Promise<ControlPlane[]> {
  return tx
    .selectFrom('control_planes')
    .select(['id', 'url', 'fingerprint'])
    .where(isLive())
    .orderBy('started_at')
    .orderBy('id')
    .execute();
}

const isLive = () => sql<boolean>`seen_at > now() - make_interval(secs => ${LIVE_SECONDS})`;
