import { sql } from 'kysely';
import { arrayText } from '../db/array-text.ts';
import type { Tx } from '../db/pool.ts';
import { rfc3339 } from '../lib/clock.ts';
import type { AuditId, OrgId } from '../lib/ids.ts';
import type { WrittenEntry } from './macs.ts';

/** `own_mac`: what it is known by until it is sealed. */
export async function insertEntry(tx: Tx, entry: WrittenEntry, own_mac: Buffer): Promise<void> {
  const { org_id, id, at, actor, action, target, ip, request_id, data } = entry;
  const values = { org_id, id, at: new Date(at), actor, action, target, ip, request_id, mac: own_mac };
  await tx
    .insertInto('audit_log')
    .values({ ...values, data: JSON.stringify(data) })
    .execute();
}

export interface Head {
  readonly org_id: OrgId;
  /** The number of the newest sealed entry; 0: none. */
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
  readonly refused: boolean;
};

/**
 * Locks the heads of the organisations whose entries have waited for longest, made where there was none, but for those
 * that another sealer holds. What is lost of a sealer's transaction when the database dies is done again, so it does
 * not wait for the disk.
 */
export async function lockWaitingHeads(tx: Tx, limit: number): Promise<readonly Head[]> {
  const waiting = sql`
    select org_id from audit_log where seq is null and not refused order by serial limit ${limit}`;
  const [, , { rows }] = await Promise.all([
    sql`set local synchronous_commit = off`.execute(tx),
    sql`
      insert into audit_heads (org_id, seq, mac)
      select distinct org_id, 0, ''::bytea from (${waiting}) w
      where not exists (select from audit_heads h where h.org_id = w.org_id)
      order by org_id on conflict do nothing`.execute(tx),
    sql<Head>`
      select org_id, seq, mac from audit_heads where org_id in (${waiting})
      for update skip locked`.execute(tx),
  ]);
  return rows;
}

/** In the order of their writing. To be called under the heads' locks: who held them before has sealed what it took. */
export function takeWaiting(tx: Tx, org_ids: readonly OrgId[], limit: number): Promise<StoredEntry[]> {
  return (
    entries(tx)
      .where('seq', 'is', null)
      // Not as a parameter: the index of those that wait is found by it.
      .where((eb) => eb.not('refused'))
      .where('org_id', 'in', [...org_ids])
      .orderBy('serial')
      .limit(limit)
      .execute()
      .then((rows) => rows.map(stored))
  );
}

/** Numbers and chain MACs of the entries, and the heads as they are then. */
export async function writeSeals(tx: Tx, sealed: readonly Sealed[], heads: readonly Head[]): Promise<void> {
  if (sealed.length === 0) return;
  await sql`
    with sealed as (
      update audit_log l set seq = s.seq, mac = s.mac
      from unnest(${arrayText(sealed.map(({ org_id }) => org_id))}::text[], ${arrayText(sealed.map(({ id }) => id))}::text[],
                  ${arrayText(sealed.map(({ seq }) => seq))}::bigint[], ${sealed.map(({ mac }) => mac)}::bytea[])
        as s (org_id, id, seq, mac)
      where l.org_id = s.org_id and l.id = s.id
    )
    update audit_heads h set seq = n.seq, mac = n.mac
    from unnest(${heads.map(({ org_id }) => org_id)}::text[], ${heads.map(({ seq }) => seq)}::bigint[],
                ${heads.map(({ mac }) => mac)}::bytea[]) as n (org_id, seq, mac)
    where h.org_id = n.org_id and h.seq < n.seq`.execute(tx);
}

export async function refuseEntries(
  tx: Tx,
  org_ids: readonly OrgId[],
  ids: readonly AuditId[],
): Promise<void> {
  if (ids.length === 0) return;
  await tx
    .updateTable('audit_log')
    .set({ refused: true })
    .where('org_id', 'in', [...org_ids])
    .where('id', 'in', [...ids])
    .execute();
}

export function findHead(tx: Tx, org_id: OrgId): Promise<Head | undefined> {
  return tx.selectFrom('audit_heads').selectAll().where('org_id', '=', org_id).executeTakeFirst();
}

/** The first entry of the chain of some organisation. */
export async function findFirstSealed(tx: Tx): Promise<StoredEntry | undefined> {
  const row = await entries(tx).where('seq', '=', 1).limit(1).executeTakeFirst();
  return row && stored(row);
}

/** Organisations that have a log, or had one whose head is left; those deleted too. By indexes: the log may be long. */
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

/** The chain, from its first entry. */
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

/** What is not in the chain, in the order of its writing. */
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
}

/** By id, which says when it was written: an entry keeps its place when it is sealed. */
export async function listAudit(
  tx: Tx,
  org_id: OrgId,
  filter: AuditFilter,
  before: string | null,
  limit: number,
) {
  return auditPage(tx, org_id, filter, before, limit).execute();
}

export function auditPage(tx: Tx, org_id: OrgId, filter: AuditFilter, before: string | null, limit: number) {
  let query = tx
    .selectFrom('audit_log')
    .select(['id', 'seq', 'at', 'actor', 'action', 'target', 'ip', 'request_id', 'data'])
    .where('org_id', '=', org_id);
  if (filter.action !== undefined) query = query.where('action', '=', filter.action);
  if (filter.actor !== undefined) query = query.where('actor', '=', filter.actor);
  if (before !== null) query = query.where('id', '<', before as AuditId);
  return query.orderBy('id', 'desc').limit(limit);
}
