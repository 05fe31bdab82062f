/**
 * The places a person logs in from. A place is a network prefix (IPv4 /24, IPv6 /48) and a browser without version
 * numbers, stored as a hash. A login from an unknown place raises a notification, except the account's first login.
 */
import { createHash } from 'node:crypto';
import { isIPv4, isIPv6 } from 'node:net';
import type { UserId } from '../../shared/ids.ts';
import { firstGroups } from '../../shared/ipv6.ts';
import type { Tx } from '../db/pool.ts';
import { appendPrivate } from '../events/append.ts';
import { dropOldestPlaces, keepPlaces, listPlaces, MAX_PLACES, otherSessions } from './known-place-store.ts';
import type { Caller, OpenedSession } from './sessions.ts';

/** Call it in the transaction that opens the session. */
export async function noteLogin(
  tx: Tx,
  user_id: UserId,
  { session_id }: Pick<OpenedSession, 'session_id'>,
  caller: Caller,
): Promise<void> {
  const kept = await listPlaces(tx, user_id);
  // Open sessions may be older than this table.
  const sessions = kept.length > 0 ? [] : await otherSessions(tx, user_id, session_id);
  const from_sessions = sessions.map((each) => placeOf(user_id, each));
  const known = [...kept, ...from_sessions];
  const place = placeOf(user_id, caller);
  const is_new = known.length > 0 && !known.some((each) => each.equals(place));
  const inserted = await keepPlaces(tx, user_id, [place, ...from_sessions]);
  if (kept.length >= MAX_PLACES) await dropOldestPlaces(tx, user_id);
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
  return firstGroups(ip, 3);
}
