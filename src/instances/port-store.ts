/**
 * The SSH ports that no instance has. A port leaves the table in the transaction that gives it to an instance, and
 * comes back in the one that removes the instance. It is quarantined then if a VM of the instance ever ran, because
 * clients still connect to it and know its host key. Quarantine only orders the free ports: it never keeps the last
 * ones from being taken.
 */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';

export interface PortRange {
  readonly first_port: number;
  readonly last_port: number;
}

const QUARANTINE = sql`interval '1 day'`;

/**
 * Makes the ports of the range available, at the control plane's start. Instances keep ports outside of it. A port
 * outside of it that is quarantined stays known: the next start may have another range.
 */
export async function offerPorts(tx: Tx, { first_port, last_port }: PortRange): Promise<void> {
  // Transactions of the control plane before this one may still be ending.
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
 * Holds a free port of the range that is not in `avoid` until the transaction's end. Ports that others hold are passed
 * over. The one that has been quarantined longest comes last. Undefined: there is none.
 */
export async function holdFreePort(
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

/** Takes a port that {@link holdFreePort} holds. */
export async function takePort(tx: Tx, port: number): Promise<void> {
  await tx.deleteFrom('free_ssh_ports').where('port', '=', port).execute();
}

/** Gives the port of a removed instance back. */
export async function releasePort(tx: Tx, port: number, has_run: boolean): Promise<void> {
  await tx
    .insertInto('free_ssh_ports')
    .values({ port, quarantined_at: has_run ? sql<Date>`now()` : null })
    .onConflict((conflict) =>
      conflict.column('port').doUpdateSet({ quarantined_at: sql`excluded.quarantined_at` }),
    )
    .execute();
}
