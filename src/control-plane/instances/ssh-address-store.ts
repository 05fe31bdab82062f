/**
 * SQL of SSH addresses, which are pairs of a host name and a port. A free address is a row of `free_ssh_ports`. The row
 * is deleted in the transaction that assigns the address to an instance, and inserted again in the one that removes the
 * instance.
 *
 * If a VM of the removed instance ever ran, its address is quarantined for a day: clients may still connect to it, and
 * know its host key. Quarantined addresses are assigned last, but they are assigned when no other is free.
 */
import { sql } from 'kysely';
import { notify } from '../db/notify.ts';
import type { Tx } from '../db/pool.ts';

export interface SshAddress {
  readonly host: string;
  readonly port: number;
}

/** The addresses of new instances: each port of the range at each name. */
export interface AddressRange {
  readonly hosts: readonly string[];
  readonly first_port: number;
  readonly last_port: number;
}

const QUARANTINE = sql`interval '1 day'`;

/**
 * Makes the addresses of the range available, at the control plane's start. Instances keep addresses outside of it. A
 * quarantined address outside of it stays in the table, because the next start may have another range.
 */
export async function offerAddresses(tx: Tx, range: AddressRange): Promise<void> {
  const { hosts, first_port, last_port } = range;
  // Transactions of the previous control plane may still be ending.
  await sql`lock table free_ssh_ports in share row exclusive mode`.execute(tx);
  const [only] = hosts;
  if (only !== undefined && hosts.length === 1) await followName(tx, only);
  await sql`
    insert into free_ssh_ports (host, port)
    select host, port
    from unnest(${[...hosts]}::text[]) as host, generate_series(${first_port}::int, ${last_port}::int) as port
    where not exists (select from instances where ssh_host = host and ssh_port = port)
    on conflict do nothing`.execute(tx);
  await sql`
    delete from free_ssh_ports
    where (port < ${first_port} or port > ${last_port} or host <> all(${[...hosts]}::text[]))
      and (quarantined_at is null or quarantined_at < now() - ${QUARANTINE})`.execute(tx);
}

/**
 * An installation with one name is renamed as a whole: all of its instances are at one machine or balancer. As soon as there are
 * two names, an instance's address never changes.
 */
async function followName(tx: Tx, host: string): Promise<void> {
  const { rows } = await sql<{ host: string }>`
    select host from free_ssh_ports union select ssh_host from instances limit 2`.execute(tx);
  const [before] = rows;
  if (rows.length !== 1 || before === undefined || before.host === host) return;
  await tx.updateTable('free_ssh_ports').set({ host }).execute();
  await tx.updateTable('instances').set({ ssh_host: host, version: sql`version + 1` }).execute();
  await notify(tx, 'routes');
}

/**
 * Locks a free address of the range that is not in `avoid`, skipping those that others have locked. Quarantined addresses come
 * last, the longest quarantined first. Undefined when there is none.
 */
export async function lockFreeAddress(
  tx: Tx,
  { hosts, first_port, last_port }: AddressRange,
  avoid: readonly SshAddress[],
): Promise<SshAddress | undefined> {
  const { rows } = await sql<SshAddress>`
    select host, port from free_ssh_ports f
    where port between ${first_port} and ${last_port} and host = any(${[...hosts]}::text[])
      and not exists (
        select from unnest(${avoid.map((each) => each.host)}::text[], ${avoid.map((each) => each.port)}::int[])
          as avoided (host, port)
        where avoided.host = f.host and avoided.port = f.port)
    order by quarantined_at nulls first, port, host
    limit 1 for update of f skip locked`.execute(tx);
  return rows[0];
}

/** Takes an address that {@link lockFreeAddress} has locked. */
export async function takeAddress(tx: Tx, { host, port }: SshAddress): Promise<void> {
  await tx.deleteFrom('free_ssh_ports').where('host', '=', host).where('port', '=', port).execute();
}

/** Returns the address of a removed instance. */
export async function releaseAddress(tx: Tx, { host, port }: SshAddress, has_run: boolean): Promise<void> {
  await tx
    .insertInto('free_ssh_ports')
    .values({ host, port, quarantined_at: has_run ? sql<Date>`now()` : null })
    .onConflict((conflict) =>
      conflict.columns(['host', 'port']).doUpdateSet({ quarantined_at: sql`excluded.quarantined_at` }),
    )
    .execute();
}
