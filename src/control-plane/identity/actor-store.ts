/**
 * The names of actors, for events and the audit log: e-mail addresses of an organisation's members and names of its service
 * accounts. A former member's address is no longer the organisation's to know.
 */
import { sql } from 'kysely';
import type { OrgId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

/** By id. */
export async function actorNames(
  tx: Tx,
  org_id: OrgId,
  actors: readonly string[],
): Promise<ReadonlyMap<string, string>> {
  const ids = [...new Set(actors)].filter((id) => /^(usr|sa)_/.test(id));
  if (ids.length === 0) return new Map();
  const { rows } = await sql<{ id: string; name: string }>`
    select u.id, u.email as name from users u join memberships m on m.user_id = u.id
    where m.org_id = ${org_id} and u.id = any(${ids}::text[])
    union all select id, name from service_accounts where org_id = ${org_id} and id = any(${ids}::text[])`.execute(
    tx,
  );
  return new Map(rows.map(({ id, name }) => [id, name]));
}

/** Ids, and the two actors without one. */
const IS_ACTOR = /^((usr|sa|host)_[0-9a-z]+|system|operator)$/;

/** The actor with this id, e-mail address of a member or name of a service account; null: there is none. */
export async function findActor(tx: Tx, org_id: OrgId, text: string): Promise<string | null> {
  if (IS_ACTOR.test(text)) return text;
  const { rows } = await sql<{ id: string }>`
    select u.id from users u join memberships m on m.user_id = u.id
    where m.org_id = ${org_id} and u.email_key = lower(${text})
    union all select id from service_accounts where org_id = ${org_id} and name = ${text}
    limit 1`.execute(tx);
  return rows[0]?.id ?? null;
}
