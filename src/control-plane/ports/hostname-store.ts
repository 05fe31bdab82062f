/** Custom hostnames of HTTP ports, and the checks of their TXT records. */
import { sql } from 'kysely';
import type { HttpPortId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

/** False: the port has it already. */
export async function insertHostname(
  tx: Tx,
  port_id: HttpPortId,
  hostname: string,
  proof: string,
): Promise<boolean> {
  const row = await tx
    .insertInto('http_hostnames')
    .values({ port_id, hostname, proof })
    .onConflict((conflict) => conflict.doNothing())
    .returning('hostname')
    .executeTakeFirst();
  return row !== undefined;
}

export async function deleteHostname(tx: Tx, port_id: HttpPortId, hostname: string): Promise<void> {
  await tx
    .deleteFrom('http_hostnames')
    .where('port_id', '=', port_id)
    .where('hostname', '=', hostname)
    .execute();
}

export interface DueHostname {
  readonly port_id: HttpPortId;
  readonly hostname: string;
  readonly proof: string;
  readonly active: boolean;
  readonly age_s: number;
}

/** Those whose next check is due, the longest overdue first; of each organisation in turn, so that none with many holds up the others. */
export async function listDueHostnames(tx: Tx, limit: number): Promise<DueHostname[]> {
  const { rows } = await sql<DueHostname>`
    select h.port_id, h.hostname, h.proof, h.active_at is not null as active,
      extract(epoch from now() - h.created_at)::float8 as age_s
    from http_hostnames h join http_ports p on p.id = h.port_id join instances i on i.id = p.instance_id
    where h.next_check_at <= now()
    order by row_number() over (partition by i.org_id order by h.next_check_at), h.next_check_at
    limit ${limit}`.execute(tx);
  return rows;
}

/** Undefined: the port is gone, or its instance is being deleted. */
export async function findPlace(tx: Tx, port_id: HttpPortId) {
  return tx
    .selectFrom('http_ports as p')
    .innerJoin('instances as i', 'i.id', 'p.instance_id')
    .select(['p.instance_id', 'i.org_id'])
    .where('p.id', '=', port_id)
    .where('i.deleting', '=', false)
    .executeTakeFirst();
}

/** The port where it is active. */
export async function activeOwner(tx: Tx, hostname: string): Promise<HttpPortId | null> {
  const row = await tx
    .selectFrom('http_hostnames')
    .select('port_id')
    .where('hostname', '=', hostname)
    .where('active_at', 'is not', null)
    .executeTakeFirst();
  return row?.port_id ?? null;
}

/** Records a check that changes nothing else. */
export async function recordCheck(
  tx: Tx,
  { port_id, hostname }: Pick<DueHostname, 'port_id' | 'hostname'>,
  problem: string | null,
  next_s: number,
): Promise<void> {
  await tx
    .updateTable('http_hostnames')
    .set({ checked_at: NOW, problem, next_check_at: after(next_s) })
    .where('port_id', '=', port_id)
    .where('hostname', '=', hostname)
    .execute();
}

/** Makes it active, or pending again. False: it is gone, or was so already. */
export async function setActive(
  tx: Tx,
  { port_id, hostname }: Pick<DueHostname, 'port_id' | 'hostname'>,
  active: boolean,
): Promise<boolean> {
  const row = await tx
    .updateTable('http_hostnames')
    .set({ active_at: active ? NOW : null })
    .where('port_id', '=', port_id)
    .where('hostname', '=', hostname)
    .where('active_at', active ? 'is' : 'is not', null)
    .returning('hostname')
    .executeTakeFirst();
  return row !== undefined;
}

/** Its next check is due now. */
export async function hurryCheck(tx: Tx, port_id: HttpPortId, hostname: string): Promise<void> {
  await tx
    .updateTable('http_hostnames')
    .set({ next_check_at: sql<Date>`now()` })
    .where('port_id', '=', port_id)
    .where('hostname', '=', hostname)
    .execute();
}

const NOW = sql<Date>`date_trunc('milliseconds', now())`;
const after = (seconds: number) => sql<Date>`now() + make_interval(secs => ${seconds})`;
