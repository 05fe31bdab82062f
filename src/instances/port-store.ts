/**
 * The free SSH ports. A port leaves the table in the transaction that assigns it to an instance, and returns in the
 * transaction that removes the instance. If a VM of the instance ever ran, the port is quarantined: clients may still connect
 * to it, and know its host key. Quarantined ports are assigned last; quarantine never blocks an assignment.
 */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';

export interface PortRange {
  readonly first_port: number;
  readonly last_port: number;
}

const QUARANTINE = sql`interval '1 day'`;

/**
 * Makes the ports of the range available, at the control plane's start. Instances keep their ports outside the range. A
 * quarantined port outside the range stays in the table, because the next start may have another range.
 */
export async function offerPorts(tx: Tx, { first_port, last_port }: PortRange): Promise<void> {
  // Transactions of the previous control plane may still be ending.
  await sql`lock table free_ssh_ports in share row exclusive mode`.execute(tx);
  await sql`
    insert into free_ssh_ports (port)
    select port from generate_series(${first_port}::int, ${last_port}::int) as port
    where not exists (select from instances where ssh_port = port)
    on conflict do nothing`.execute(tx);
  await sql`
    delete from free_ssh_ports
    where (port < ${first_port} or port > ${last_port})
      and (quarantined_at is null or quarantined_at < now() - ${QUARANTINE})`.execute(tx);
}

/**
 * Locks a free port of the range that is not in `avoid`, skipping ports that others have locked. Quarantined ports come
 * last, the longest quarantined first. Undefined when there is none.
 */
export async function lockFreePort(
  tx: Tx,
  { first_port, last_port }: PortRange,
  avoid: readonly number[],
): Promise<number | undefined> {
  const { rows } = await sql<{ port: number }>`
    select port from free_ssh_ports
    where port between ${first_port} and ${last_port} and port <> all(${[...avoid]}::int[])
    order by quarantined_at nulls first, port
    limit 1 for update skip locked`.execute(tx);
  return rows[0]?.port;
}

/** Takes a port that {@link lockFreePort} has locked. */
export async function takePort(tx: Tx, port: number): Promise<void> {
  await tx.deleteFrom('free_ssh_ports').where('port', '=', port).execute();
}

/** Returns the port of a removed instance. */
export async function releasePort(tx: Tx, port: number, has_run: boolean): Promise<void> {
  await tx
    .insertInto('free_ssh_ports')
    .values({ port, quarantined_at: has_run ? sql<Date>`now()` : null })
    .onConflict((conflict) =>
      conflict.column('port').doUpdateSet({ quarantined_at: sql`excluded.quarantined_at` }),
    )
    .execute();
}
