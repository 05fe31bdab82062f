/** Names of the actors and targets of audit entries. They are looked up when a log is read; the chain covers ids alone. */
import { sql } from 'kysely';
import type { OrgId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

/** By id. A deleted resource or former member has the name that the newest entry about it noted. */
export async function auditNames(
  tx: Tx,
  org_id: OrgId,
  mentioned: readonly (string | null)[],
): Promise<ReadonlyMap<string, string>> {
  const ids = [...new Set(mentioned)].filter((id) => id !== null);
  const names = await presentNames(tx, org_id, ids);
  const gone = ids.filter((id) => !names.has(id) && NAMED.test(id));
  if (gone.length > 0) for (const [id, name] of await notedNames(tx, org_id, gone)) names.set(id, name);
  return names;
}

/** Ids of resources that have names. */
const NAMED = /^(usr|inst|key|ak|wh|sa|inv|mfa)_/;

interface Named {
  readonly id: string;
  readonly name: string;
}

async function presentNames(tx: Tx, org_id: OrgId, ids: readonly string[]): Promise<Map<string, string>> {
  const wanted = sql`any(${[...ids]}::text[])`;
  const { rows } = await sql<Named>`
    select u.id, u.email as name from users u join memberships m on m.user_id = u.id
    where m.org_id = ${org_id} and u.id = ${wanted}
    union all select id, name from organisations where id = ${wanted} and id = ${org_id}
    union all select id, name from service_accounts where id = ${wanted} and org_id = ${org_id}
    union all select id, name from instances where id = ${wanted} and org_id = ${org_id}
    union all select id, name from ssh_keys where id = ${wanted}
    union all select id, name from api_keys where id = ${wanted} and org_id = ${org_id}
    union all select id, name from webhooks where id = ${wanted} and org_id = ${org_id}
    union all select id, email from invitations where id = ${wanted} and org_id = ${org_id}
    union all select p.id, i.name || ':' || p.port from http_ports p join instances i on i.id = p.instance_id
    where p.id = ${wanted} and i.org_id = ${org_id}
    union all select e.id, i.name from execs e join instances i on i.id = e.instance_id
    where e.id = ${wanted} and i.org_id = ${org_id}
    union all select id, name from mfa_factors where id = ${wanted}`.execute(tx);
  return new Map(rows.map(({ id, name }) => [id, name]));
}

async function notedNames(tx: Tx, org_id: OrgId, ids: readonly string[]): Promise<Map<string, string>> {
  const { rows } = await sql<Named>`
    select t.id, l.name from unnest(${[...ids]}::text[]) as t (id), lateral (
      select coalesce(data ->> 'email', data ->> 'name') as name from audit_log
      where org_id = ${org_id} and target = t.id and data ?| array['name', 'email']
      order by id desc limit 1
    ) as l where l.name is not null`.execute(tx);
  return new Map(rows.map(({ id, name }) => [id, name]));
}
