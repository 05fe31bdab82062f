/** Leases of hosts, as the database knows them. `lease-monitor.ts` decides which have expired. */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import type { HostId } from '../lib/ids.ts';
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
  const is_alone = (await countHosts(tx)) < 2;
  await tx
    .updateTable('hosts')
    .set({
      beat: sql`beat + 1`,
      last_seen_at: sql`now()`,
      lost_at: null,
      // The only host cannot expire, even before it learns so.
      lease_ms: is_alone ? null : kept_ms,
    })
    .where('id', '=', id)
    .execute();
  return is_alone ? null : lease_ms;
}

/** Hosts of the fleet; this machine's own only after its first heartbeat. */
async function countHosts(tx: Tx): Promise<number> {
  const { count } = await tx
    .selectFrom('hosts')
    .select((eb) => eb.fn.countAll<number>().as('count'))
    .where('removed_at', 'is', null)
    .where((eb) => eb.or([eb('remote', '=', true), eb('last_seen_at', 'is not', null)]))
    .executeTakeFirstOrThrow();
  return count;
}

/** Hosts that can expire, and removed ones. */
export async function listLeases(tx: Tx): Promise<LeaseState[]> {
  const rows = await tx
    .selectFrom('hosts')
    .select(['id', 'name', 'beat', 'lease_ms', sql<boolean>`removed_at is not null`.as('removed')])
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
