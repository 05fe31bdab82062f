/**
 * Where a person logs in from: the network's prefix (IPv4 /24, IPv6 /48) and the browser without its version numbers,
 * kept as a hash. A login from a place that is not known is told of, unless it is the first of all.
 */
import { createHash } from 'node:crypto';
import { isIPv4, isIPv6 } from 'node:net';
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import { appendPrivate } from '../events/append.ts';
import type { UserId } from '../lib/ids.ts';
import type { Caller, OpenedSession } from './sessions.ts';

/** As many as sessions that are looked at where no place is kept yet. */
const MAX_SESSIONS = 100;
const MAX_PLACES = 500;
const KEPT_DAYS = 365;

/** To be called in the transaction that opens the session. */
export async function noteLogin(
  tx: Tx,
  user_id: UserId,
  { session_id }: Pick<OpenedSession, 'session_id'>,
  caller: Caller,
): Promise<void> {
  const kept = await keptPlaces(tx, user_id);
  // Sessions that are open may be older than this table.
  const from_sessions = kept.length > 0 ? [] : await sessionPlaces(tx, user_id, session_id);
  const known = [...kept, ...from_sessions];
  const place = placeOf(user_id, caller);
  const is_new = known.length > 0 && !known.some((each) => each.equals(place));
  const inserted = await keep(tx, user_id, [place, ...from_sessions]);
  if (kept.length >= MAX_PLACES) await dropOldest(tx, user_id);
  if (!is_new || !inserted) return;
  const { ip, user_agent } = caller;
  await appendPrivate(tx, {
    type: 'login.new_place',
    org_id: null,
    user_id,
    data: { ip, user_agent, session_id },
    actor: user_id,
  });
}

async function keptPlaces(tx: Tx, user_id: UserId): Promise<Buffer[]> {
  const rows = await tx
    .selectFrom('known_places')
    .select('place_hash')
    .where('user_id', '=', user_id)
    .execute();
  return rows.map(({ place_hash }) => place_hash);
}

async function sessionPlaces(tx: Tx, user_id: UserId, session_id: string): Promise<Buffer[]> {
  const sessions = await tx
    .selectFrom('sessions')
    .select(['ip', 'user_agent'])
    .where('user_id', '=', user_id)
    .where('id', '!=', session_id as never)
    .orderBy('id', 'desc')
    .limit(MAX_SESSIONS)
    .execute();
  return sessions.map((session) => placeOf(user_id, session));
}

async function dropOldest(tx: Tx, user_id: UserId): Promise<void> {
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

/** Whether the first of them was not there: true for one of several logins at once. */
async function keep(tx: Tx, user_id: UserId, places: readonly Buffer[]): Promise<boolean> {
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

export function placeOf(user_id: UserId, { ip, user_agent }: Caller): Buffer {
  const agent = user_agent.replace(/\d[\d._]*/g, '');
  return createHash('sha256')
    .update(JSON.stringify([user_id, networkOf(ip), agent]))
    .digest();
}

function networkOf(ip: string): string {
  const v4 = ip.replace(/^::ffff:/i, '');
  if (isIPv4(v4)) return v4.split('.').slice(0, 3).join('.');
  if (!isIPv6(ip)) return ip;
  const [head = '', tail] = ip.split('::');
  const first = head.split(':').filter((part) => part !== '');
  const last = (tail ?? '').split(':').filter((part) => part !== '');
  const zeros = tail === undefined ? 0 : Math.max(0, 8 - first.length - last.length);
  return [...first, ...Array<string>(zeros).fill('0'), ...last]
    .slice(0, 3)
    .map((part) => Number.parseInt(part, 16).toString(16))
    .join(':');
}

/** For the sweep. */
export async function deleteOldPlaces(tx: Tx): Promise<void> {
  await tx
    .deleteFrom('known_places')
    .where('last_seen_at', '<', sql<Date>`now() - make_interval(days => ${KEPT_DAYS})`)
    .execute();
}
