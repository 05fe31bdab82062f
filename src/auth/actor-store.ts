/** The names of who acts, for events and the audit log. */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import type { OrgId } from '../lib/ids.ts';

/** By id: people's e-mail addresses and service accounts' names. The ids are those of an organisation's events. */
export async function actorNames(tx: Tx, actors: readonly string[]): Promise<ReadonlyMap<string, string>> {
  const ids = [...new Set(actors)].filter((id) => /^(usr|sa)_/.test(id));
  if (ids.length === 0) return new Map();
  const { rows } = await sql<{ id: string; name: string }>`
    select id, email as name from users where id = any(${ids}::text[])
    union all select id, name from service_accounts where id = any(${ids}::text[])`.execute(tx);
  return new Map(rows.map(({ id, name }) => [id, name]));
}

/** Ids, and the two actors without one. */
const IS_ACTOR = /^((usr|sa|host)_[0-9a-z]+|system|operator)$/;

/** The actor with this id, e-mail address or name of a service account; null: there is none. */
export async function findActor(tx: Tx, org_id: OrgId, text: string): Promise<string | null> {
  if (IS_ACTOR.test(text)) return text;
  const { rows } = await sql<{ id: string }>`
    select id from users where email_key = lower(${text})
    union all select id from service_accounts where org_id = ${org_id} and name = ${text}
    limit 1`.execute(tx);
  return rows[0]?.id ?? null;
}
