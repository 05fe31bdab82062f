/** Leases of hosts, as the database knows them. Who judges them is `lease-monitor.ts`. */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import type { HostId } from '../lib/ids.ts';
import type { LeaseState } from './lease-monitor.ts';

/**
 * The host lives, and keeps a lease of `kept_ms`. Answers the lease that it is to keep: `lease_ms`, or none while it is
 * the only host. A host that was lost is so no more.
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
      // Alone it is not lost from here on, whether or not it hears of it.
      lease_ms: is_alone ? null : kept_ms,
    })
    .where('id', '=', id)
    .execute();
  return is_alone ? null : lease_ms;
}

/** Those that are part of the fleet: the own machine's only once it was heard of. */
async function countHosts(tx: Tx): Promise<number> {
  const { count } = await tx
    .selectFrom('hosts')
    .select((eb) => eb.fn.countAll<number>().as('count'))
    .where('removed_at', 'is', null)
    .where((eb) => eb.or([eb('remote', '=', true), eb('last_seen_at', 'is not', null)]))
    .executeTakeFirstOrThrow();
  return count;
}

/** Of all hosts that may be lost, or have been removed. */
export async function listLeases(tx: Tx): Promise<LeaseState[]> {
  const rows = await tx
    .selectFrom('hosts')
    .select(['id', 'name', 'beat', 'lease_ms', sql<boolean>`removed_at is not null`.as('removed')])
    .where((eb) => eb.or([eb('lease_ms', 'is not', null), eb('removed_at', 'is not', null)]))
    .execute();
  return rows;
}

/**
 * Says that the host is lost, if it has not been heard of since `beat`; a renewal waits until the transaction's end.
 * `already`: it was said before. Whoever holds an instance as well has locked that first.
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
