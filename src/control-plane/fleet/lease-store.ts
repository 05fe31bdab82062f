/** Leases of hosts, as the database knows them. `lease-monitor.ts` decides which have expired. */
import { sql } from 'kysely';
import { DEFAULT_LEASE_MS } from '../../protocol/types.ts';
import type { HostId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { LeaseState } from './lease-monitor.ts';

/**
 * Renews the lease of `kept_ms` that the host has, and returns the lease for it to have: `lease_ms`, or null while it is
 * the only host. A lost host is no longer lost.
 */
export async function renewLease(
  tx: Tx,
  id: HostId,
  kept_ms: number | null,
  lease_ms: number,
): Promise<number | null> {
  // In one statement, because every host renews every few seconds. This machine's own host counts after its first heartbeat.
  const { rows } = await sql<{ is_alone: boolean }>`
    with fleet as (
      select exists (
        select from hosts where id <> ${id} and removed_at is null and (remote or last_seen_at is not null)
      ) as has_others
    )
    update hosts set beat = beat + 1, last_seen_at = now(), lost_at = null,
      -- The only host cannot expire, even before it learns so.
      lease_ms = case when fleet.has_others then ${kept_ms}::int end
    from fleet where id = ${id} returning not fleet.has_others as is_alone`.execute(tx);
  return rows[0]?.is_alone === false ? lease_ms : null;
}

/**
 * Hosts that can expire: those with a lease, and removed ones. A removed host that had none, as the only one, pauses its VMs when its
 * credential is refused for the default lease.
 */
export async function listLeases(tx: Tx): Promise<LeaseState[]> {
  const rows = await tx
    .selectFrom('hosts')
    .select(['id', 'name', 'beat'])
    .select((eb) => eb.fn.coalesce('lease_ms', sql<number>`${DEFAULT_LEASE_MS}::int`).as('lease_ms'))
    .select(sql<boolean>`lost_at is not null`.as('lost'))
    .where((eb) => eb.or([eb('lease_ms', 'is not', null), eb('removed_at', 'is not', null)]))
    .execute();
  return rows;
}

/**
 * Marks the host as lost unless it has renewed since `beat`. A renewal waits until the transaction's end. Lock order:
 * instances before hosts.
 */
export async function markLost(tx: Tx, id: HostId, beat: number): Promise<'lost' | 'already' | 'renewed'> {
  const row = await tx
    .selectFrom('hosts')
    .select(['lost_at'])
    .where('id', '=', id)
    .where('beat', '=', beat)
    .forUpdate()
    .executeTakeFirst();
  if (!row) return 'renewed';
  if (row.lost_at !== null) return 'already';
  await tx.updateTable('hosts').set({ lost_at: sql`now()` }).where('id', '=', id).execute();
  return 'lost';
}

export async function isLost(tx: Tx, id: HostId): Promise<boolean> {
  const row = await tx.selectFrom('hosts').select('lost_at').where('id', '=', id).executeTakeFirst();
  return row !== undefined && row.lost_at !== null;
}
