/**
 * SQL of `audit_log` and `audit_heads`: inserts and seals entries, and reads them for sealing, for verification and as
 * pages. `auditNames` looks up the names of actors and targets.
 */
import { sql } from 'kysely';
import { rfc3339 } from '../../shared/clock.ts';
import { type AuditId, newId, type OrgId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { WrittenEntry } from './seal-audit.ts';

/** `mac`: the entry's own, until it is sealed. */
export async function insertEntry(tx: Tx, { data, at, ...entry }: WrittenEntry, mac: Buffer): Promise<void> {
  await tx
    .insertInto('audit_log')
    .values({ ...entry, at: sql<Date>`${at}::timestamptz`, data: JSON.stringify(data), mac })
    .execute();
}

export interface Head {
  readonly org_id: OrgId;
  /** The number of the newest sealed entry. */
  readonly seq: number;
  readonly mac: Buffer;
}

export interface Sealed {
  readonly org_id: OrgId;
  readonly id: AuditId;
  readonly seq: number;
  readonly mac: Buffer;
}

type StoredEntry = WrittenEntry & {
  readonly serial: number;
  readonly seq: number | null;
  readonly mac: Buffer;
};

/** Held until the transaction ends. False: another sealer holds it. */
export async function lockSealer(tx: Tx): Promise<boolean> {
  const { rows } = await sql<{ taken: boolean }>`select pg_try_advisory_xact_lock(7400005) as taken`.execute(
    tx,
  );
  return rows[0]?.taken === true;
}

/** The oldest unsealed entries of all organisations, in the order of their inserts. */
export function listUnsealedMacs(tx: Tx, limit: number) {
  return tx
    .selectFrom('audit_log')
    .select(['org_id', 'id', 'mac'])
    .where('seq', 'is', null)
    .orderBy('serial')
    .limit(limit)
    .execute();
}

export async function listHeads(tx: Tx, org_ids: readonly OrgId[]): Promise<readonly Head[]> {
  if (org_ids.length === 0) return [];
  return tx.selectFrom('audit_heads').selectAll().where('org_id', 'in', org_ids).execute();
}

export async function writeSeals(tx: Tx, sealed: readonly Sealed[], heads: readonly Head[]): Promise<void> {
  if (sealed.length === 0) return;
  await sql`
    update audit_log l set seq = s.seq, mac = s.mac
    from unnest(${sealed.map(({ org_id }) => org_id)}::text[], ${sealed.map(({ id }) => id)}::text[],
                ${sealed.map(({ seq }) => seq)}::bigint[], ${sealed.map(({ mac }) => mac)}::bytea[])
      as s (org_id, id, seq, mac)
    where l.org_id = s.org_id and l.id = s.id`.execute(tx);
  await tx
    .insertInto('audit_heads')
    .values([...heads])
    .onConflict((conflict) =>
      conflict
        .column('org_id')
        .doUpdateSet((eb) => ({ seq: eb.ref('excluded.seq'), mac: eb.ref('excluded.mac') })),
    )
    .execute();
}

export function findHead(tx: Tx, org_id: OrgId): Promise<Head | undefined> {
  return tx.selectFrom('audit_heads').selectAll().where('org_id', '=', org_id).executeTakeFirst();
}

/** Organisations, deleted ones too, that have entries or a head. Reads indexes only: the log may be long. */
export async function listLogs(tx: Tx): Promise<OrgId[]> {
  const entries = tx.selectFrom('audit_log').select('org_id');
  const rows = await entries
    .where('seq', '=', 1)
    .union(entries.where('seq', 'is', null))
    .union(tx.selectFrom('audit_heads').select('org_id'))
    .orderBy('org_id')
    .execute();
  return rows.map(({ org_id }) => org_id);
}

const PAGE = 1_000;

/** Sealed entries, from the first. */
export async function* listSealed(tx: Tx, org_id: OrgId): AsyncGenerator<StoredEntry> {
  for (let after: number | null = null; ; ) {
    let query = entries(tx).where('org_id', '=', org_id).where('seq', 'is not', null);
    if (after !== null) query = query.where('seq', '>', after);
    const rows = await query.orderBy('seq').limit(PAGE).execute();
    yield* rows.map(stored);
    if (rows.length < PAGE) return;
    after = rows.at(-1)?.seq ?? null;
  }
}

/** Unsealed entries, in the order of their inserts. */
export async function* listUnsealed(tx: Tx, org_id: OrgId): AsyncGenerator<StoredEntry> {
  for (let after = 0; ; ) {
    const rows = await entries(tx)
      .where('org_id', '=', org_id)
      .where('seq', 'is', null)
      .where('serial', '>', after)
      .orderBy('serial')
      .limit(PAGE)
      .execute();
    yield* rows.map(stored);
    if (rows.length < PAGE) return;
    after = rows.at(-1)?.serial ?? after;
  }
}

function entries(tx: Tx) {
  return tx.selectFrom('audit_log').selectAll();
}

function stored<Row extends { readonly at: Date }>(row: Row) {
  return { ...row, at: rfc3339(row.at) };
}

export interface AuditFilter {
  readonly action?: string;
  readonly actor?: string;
  readonly since?: Date;
  /** Exclusive. */
  readonly until?: Date;
}

/** Newest first, by id: sealing an entry does not move it. */
export async function listAudit(
  tx: Tx,
  org_id: OrgId,
  filter: AuditFilter,
  before: string | null,
  limit: number,
) {
  return auditPage(tx, org_id, filter, before, limit).execute();
}

const ID_MARGIN_MS = 1_000;

/** Below all ids of so many milliseconds after the time. */
function idFrom(time: Date, after_ms: number): AuditId {
  const id = newId('aud', Math.max(0, time.getTime() + after_ms));
  return `${id.slice(0, -RANDOM_CHARACTERS)}${'0'.repeat(RANDOM_CHARACTERS)}` as AuditId;
}
const RANDOM_CHARACTERS = 16;

export function auditPage(tx: Tx, org_id: OrgId, filter: AuditFilter, before: string | null, limit: number) {
  let query = tx
    .selectFrom('audit_log')
    .select(['id', 'seq', 'at', 'actor', 'action', 'target', 'ip', 'request_id', 'data'])
    .where('org_id', '=', org_id);
  if (filter.action !== undefined) query = query.where('action', '=', filter.action);
  if (filter.actor !== undefined) query = query.where('actor', '=', filter.actor);
  // The id has the time of its making, which is at most a moment before `at`: the index finds it.
  if (filter.since !== undefined) {
    query = query.where('at', '>=', filter.since).where('id', '>=', idFrom(filter.since, -ID_MARGIN_MS));
  }
  if (filter.until !== undefined) {
    query = query.where('at', '<', filter.until).where('id', '<', idFrom(filter.until, ID_MARGIN_MS));
  }
  if (before !== null) query = query.where('id', '<', before as AuditId);
  return query.orderBy('id', 'desc').limit(limit);
}

/**
 * The names of actors and targets, by id. They are looked up when a log is read, because the chain covers ids alone. A
 * deleted resource or former member has the name that the newest entry about it noted.
 */
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
