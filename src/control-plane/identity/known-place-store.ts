/** The hashed places that an account has logged in from. */
import { sql } from 'kysely';
import type { SessionId, UserId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

/** Also the number of sessions examined while no place is stored. */
const MAX_SESSIONS = 100;
export const MAX_PLACES = 500;
const KEPT_DAYS = 365;

export async function listPlaces(tx: Tx, user_id: UserId): Promise<Buffer[]> {
  const rows = await tx
    .selectFrom('known_places')
    .select('place_hash')
    .where('user_id', '=', user_id)
    .execute();
  return rows.map(({ place_hash }) => place_hash);
}

/** Where the account opened its latest other sessions. */
export async function otherSessions(
  tx: Tx,
  user_id: UserId,
  session_id: SessionId,
): Promise<{ ip: string; user_agent: string }[]> {
  return tx
    .selectFrom('sessions')
    .select(['ip', 'user_agent'])
    .where('user_id', '=', user_id)
    .where('id', '!=', session_id)
    .orderBy('id', 'desc')
    .limit(MAX_SESSIONS)
    .execute();
}

/** Deletes all but the newest {@link MAX_PLACES}. */
export async function dropOldestPlaces(tx: Tx, user_id: UserId): Promise<void> {
  const newest = tx
    .selectFrom('known_places')
    .select('place_hash')
    .where('user_id', '=', user_id)
    .orderBy('last_seen_at', 'desc')
    .limit(MAX_PLACES);
  await tx
    .deleteFrom('known_places')
    .where('user_id', '=', user_id)
    .where('place_hash', 'not in', newest)
    .execute();
}

/** Returns whether the first of them was new: true for only one of several concurrent logins. */
export async function keepPlaces(tx: Tx, user_id: UserId, places: readonly Buffer[]): Promise<boolean> {
  const [place] = places;
  const unique = new Map(places.map((each) => [each.toString('hex'), each]));
  const rows = await tx
    .insertInto('known_places')
    .values([...unique.values()].map((place_hash) => ({ user_id, place_hash })))
    .onConflict((conflict) =>
      conflict.columns(['user_id', 'place_hash']).doUpdateSet({ last_seen_at: sql`now()` }),
    )
    .returning(['place_hash', sql<boolean>`xmax = 0`.as('inserted')])
    .execute();
  return rows.some(({ place_hash, inserted }) => inserted && place?.equals(place_hash) === true);
}

export async function deleteOldPlaces(tx: Tx): Promise<void> {
  await tx
    .deleteFrom('known_places')
    .where('last_seen_at', '<', sql<Date>`now() - make_interval(days => ${KEPT_DAYS})`)
    .execute();
}
