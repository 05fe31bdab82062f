/** HTTP ports, with their hostnames and use. */
import { sql } from 'kysely';
import type { HttpPortId, InstanceId } from '../../shared/ids.ts';
import type { Access } from '../db/http-tables.ts';
import type { Tx } from '../db/pool.ts';

export type PortRow = NonNullable<Awaited<ReturnType<typeof findPort>>>;

export interface HostnameRow {
  readonly hostname: string;
  readonly proof: string;
  readonly active: boolean;
  readonly checked_at: string | null;
  readonly problem: string | null;
}

const HOSTNAMES = sql<readonly HostnameRow[]>`coalesce((
  select json_agg(json_build_object('hostname', h.hostname, 'proof', h.proof, 'active', h.active_at is not null,
    'checked_at', h.checked_at, 'problem', h.problem) order by h.created_at, h.hostname)
  from http_hostnames h where h.port_id = p.id), '[]')`;

function ports(tx: Tx) {
  return tx
    .selectFrom('http_ports as p')
    .leftJoin('http_port_use as u', 'u.port_id', 'p.id')
    .select([
      'p.id',
      'p.instance_id',
      'p.label',
      'p.port',
      'p.access',
      'p.version',
      'p.created_at',
      'p.updated_at',
      'u.minute',
      'u.requests',
      'u.previous_requests',
      'u.last_error',
    ])
    .select(HOSTNAMES.as('hostnames'));
}

export async function listPorts(tx: Tx, instance_id: InstanceId, before: string | null, limit: number) {
  let query = ports(tx).where('p.instance_id', '=', instance_id);
  if (before !== null) query = query.where('p.id', '<', before as HttpPortId);
  return query.orderBy('p.id', 'desc').limit(limit).execute();
}

export async function findPort(tx: Tx, instance_id: InstanceId, id: HttpPortId) {
  return ports(tx).where('p.instance_id', '=', instance_id).where('p.id', '=', id).executeTakeFirst();
}

export async function countPorts(tx: Tx, instance_id: InstanceId): Promise<number> {
  const { count } = await tx
    .selectFrom('http_ports')
    .select((eb) => eb.fn.countAll<number>().as('count'))
    .where('instance_id', '=', instance_id)
    .executeTakeFirstOrThrow();
  return Number(count);
}

/** False: some port has had this label. */
export async function claimLabel(tx: Tx, label: string): Promise<boolean> {
  const row = await tx
    .insertInto('http_labels')
    .values({ label })
    .onConflict((conflict) => conflict.doNothing())
    .returning('label')
    .executeTakeFirst();
  return row !== undefined;
}

export interface NewPort {
  readonly id: HttpPortId;
  readonly instance_id: InstanceId;
  readonly label: string;
  readonly port: number;
  readonly access: Access;
}

export async function insertPort(tx: Tx, port: NewPort): Promise<void> {
  const now = sql<Date>`date_trunc('milliseconds', now())`;
  await tx
    .insertInto('http_ports')
    .values({ ...port, created_at: now, updated_at: now })
    .execute();
}

export async function setAccess(tx: Tx, id: HttpPortId, access: Access): Promise<void> {
  await tx
    .updateTable('http_ports')
    .set({ access, ...CHANGED })
    .where('id', '=', id)
    .execute();
}

const CHANGED = {
  version: sql<number>`version + 1`,
  updated_at: sql<Date>`date_trunc('milliseconds', now())`,
} as const;

/** Of its hostnames. */
export async function markChanged(tx: Tx, id: HttpPortId): Promise<void> {
  await tx.updateTable('http_ports').set(CHANGED).where('id', '=', id).execute();
}

export async function deletePort(tx: Tx, id: HttpPortId): Promise<void> {
  await tx.deleteFrom('http_ports').where('id', '=', id).execute();
}
