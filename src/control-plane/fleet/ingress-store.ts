/** The ingresses of the installation: their tokens, and since when each has watched the connections to instances. */
import { sql } from 'kysely';
import { type HostId, type IngressId, newId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

/** An ingress that has not reported for this long is silent: it may have connections that it could not report. */
export const INGRESS_SILENT_S = 20;
/** After this long it is dead: its connections have ended, and idle stops no longer wait for it. */
export const INGRESS_DEAD_S = 300;

export async function findIngressByToken(tx: Tx, token_hash: Buffer) {
  return tx
    .selectFrom('ingresses')
    .select(['id', 'host_id', 'protocol'])
    .where('token_hash', '=', token_hash)
    .executeTakeFirst();
}

export async function setIngressProtocol(tx: Tx, id: IngressId, protocol: number): Promise<void> {
  await tx.updateTable('ingresses').set({ protocol }).where('id', '=', id).execute();
}

/** Inserts the ingress beside a host of a control plane's machine, or replaces its token. */
export async function upsertLocalIngress(
  tx: Tx,
  name: string,
  token_hash: Buffer,
  host_id: HostId,
): Promise<void> {
  await tx
    .insertInto('ingresses')
    .values({ id: newId('ing'), name, token_hash, host_id })
    .onConflict((conflict) => conflict.column('name').doUpdateSet({ token_hash, host_id }))
    .execute();
}

/** Null when the name is taken. */
export async function insertIngress(tx: Tx, name: string, token_hash: Buffer): Promise<IngressId | null> {
  const row = await tx
    .insertInto('ingresses')
    .values({ id: newId('ing'), name, token_hash, host_id: null })
    .onConflict((conflict) => conflict.column('name').doNothing())
    .returning('id')
    .executeTakeFirst();
  return row?.id ?? null;
}

/** Revokes the token of an ingress on another machine. Undefined when there is none of that name. */
export async function deleteIngress(tx: Tx, name: string): Promise<IngressId | undefined> {
  const row = await tx
    .deleteFrom('ingresses')
    .where('name', '=', name)
    .where('host_id', 'is', null)
    .returning('id')
    .executeTakeFirst();
  return row?.id;
}

export interface KnownIngress {
  readonly id: IngressId;
  readonly name: string;
  readonly host_id: HostId | null;
  readonly protocol: number | null;
  readonly watching_since: Date | null;
  readonly reported_at: Date | null;
  readonly state: 'expected' | 'up' | 'silent' | 'dead';
}

/** By name. That of a machine which runs only a control plane never reports, and is left out. */
export async function listIngresses(tx: Tx): Promise<KnownIngress[]> {
  const { rows } = await sql<KnownIngress>`
    select id, name, host_id, protocol, watching_since, reported_at,
      case
        when reported_at is null then 'expected'
        when reported_at > now() - make_interval(secs => ${INGRESS_SILENT_S}) then 'up'
        when reported_at > now() - make_interval(secs => ${INGRESS_DEAD_S}) then 'silent'
        else 'dead'
      end as state
    from ingresses where host_id is null or reported_at is not null order by name`.execute(tx);
  return rows;
}

/** The ingress has counted connections without a gap for `watched_ms`. */
export async function recordWatch(tx: Tx, id: IngressId, watched_ms: number): Promise<void> {
  await sql`
    update ingresses
    set watching_since = now() - make_interval(secs => ${watched_ms / 1000}::float8), reported_at = now()
    where id = ${id}`.execute(tx);
}
