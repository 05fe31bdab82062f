/**
 * SQL of `execs`. A row is `starting` until the host has answered or reported the exec. Callers do not see such rows.
 */
import { sql } from 'kysely';
import { ENDED_KEPT, type ExecEnd } from '../../protocol/exec-types.ts';
import type { ExecId, HostId, InstanceId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';

export type ExecRow = NonNullable<Awaited<ReturnType<typeof findExec>>>;

/** A start that its host has not answered by then, and has not reported, takes no room: perhaps it did not happen. */
const STARTING_S = 60;
/** It is reported when it happens all the same, later: its supervisor stood still. */
const STARTING_KEPT_S = 24 * 3600;

function execs(tx: Tx) {
  return tx
    .selectFrom('execs as e')
    .innerJoin('instances as i', 'i.id', 'e.instance_id')
    .selectAll('e')
    .select('i.org_id');
}

/** Also one that is starting. */
export async function findExec(tx: Tx, instance_id: InstanceId, id: ExecId) {
  return execs(tx).where('e.instance_id', '=', instance_id).where('e.id', '=', id).executeTakeFirst();
}

export async function listExecs(tx: Tx, instance_id: InstanceId, before: string | null, limit: number) {
  let query = execs(tx).where('e.instance_id', '=', instance_id).where('e.state', '<>', 'starting');
  if (before !== null) query = query.where('e.id', '<', before as ExecId);
  return query.orderBy('e.id', 'desc').limit(limit).execute();
}

export interface NewExec {
  readonly id: ExecId;
  readonly instance_id: InstanceId;
  readonly host_id: HostId;
  readonly command: readonly string[];
  readonly tty: boolean;
  readonly stdin: boolean;
}

export async function insertExec(tx: Tx, exec: NewExec): Promise<void> {
  const started_at = sql<Date>`date_trunc('milliseconds', now())`;
  await tx
    .insertInto('execs')
    .values({ ...exec, started_at })
    .execute();
}

/** Those that run, or may. */
export async function countRunning(tx: Tx, instance_id: InstanceId): Promise<number> {
  const { count } = await tx
    .selectFrom('execs')
    .select((eb) => eb.fn.countAll<number>().as('count'))
    .where('instance_id', '=', instance_id)
    .where((eb) =>
      eb.or([
        eb('state', '=', 'running'),
        eb.and([
          eb('state', '=', 'starting'),
          eb('started_at', '>', sql<Date>`now() - make_interval(secs => ${STARTING_S})`),
        ]),
      ]),
    )
    .executeTakeFirstOrThrow();
  return Number(count);
}

/** Those that ended longest ago, and old starts without an answer. */
export async function deleteOld(tx: Tx, instance_id: InstanceId): Promise<void> {
  await sql`
    delete from execs where instance_id = ${instance_id} and (
      state = 'starting' and started_at < now() - make_interval(secs => ${STARTING_KEPT_S})
      or state in ('exited', 'lost') and id not in (
        select id from execs where instance_id = ${instance_id} and state in ('exited', 'lost')
        order by id desc limit ${ENDED_KEPT}))`.execute(tx);
}

/** Its start was refused. */
export async function deleteStarting(tx: Tx, id: ExecId): Promise<void> {
  await tx.deleteFrom('execs').where('id', '=', id).where('state', '=', 'starting').execute();
}

export async function markStarted(tx: Tx, id: ExecId): Promise<void> {
  await tx
    .updateTable('execs')
    .set({ state: 'running' })
    .where('id', '=', id)
    .where('state', '=', 'starting')
    .execute();
}

export interface SeenExec {
  readonly id: ExecId;
  readonly instance_id: InstanceId;
  readonly host_id: HostId;
  readonly output_bytes: number;
  readonly end: ExecEnd | null;
  readonly waits: boolean;
}

/** Records what the host of the instance's VM reports. An end is final. Undefined: there is no such exec of that host. */
export async function recordSeen(
  tx: Tx,
  { id, instance_id, host_id, output_bytes, end, waits }: SeenExec,
): Promise<{ readonly stdin: boolean } | undefined> {
  const ended = end && {
    ...end,
    ended_at: new Date(end.ended_at),
    lost_with: end.state === 'lost' ? (end.lost_with ?? 'boot') : null,
  };
  return tx
    .updateTable('execs')
    .set({ output_bytes, waits, host_id, ...(ended ?? { state: 'running' as const }) })
    .where('id', '=', id)
    .where('instance_id', '=', instance_id)
    .where('state', 'in', ['starting', 'running'])
    .where((eb) =>
      eb.or([
        eb('host_id', '=', host_id),
        // The VM was moved, with what runs in it.
        eb.exists(
          eb
            .selectFrom('vms')
            .select('vms.id')
            .whereRef('vms.instance_id', '=', 'execs.instance_id')
            .where('vms.host_id', '=', host_id)
            .where('vms.state', 'in', ['starting', 'running', 'restarting', 'suspending', 'stopping']),
        ),
      ]),
    )
    .returning('stdin')
    .executeTakeFirst();
}

export async function countAllRunning(tx: Tx): Promise<number> {
  const { count } = await tx
    .selectFrom('execs')
    .select((eb) => eb.fn.countAll<number>().as('count'))
    .where('state', '=', 'running')
    .executeTakeFirstOrThrow();
  return Number(count);
}
