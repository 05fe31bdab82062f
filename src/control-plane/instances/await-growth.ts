import type { InstanceId, OrgId } from '../../shared/ids.ts';
import type { NotifyHub } from '../db/notify.ts';
import type { Db } from '../db/pool.ts';
import { findInstance, type InstanceRow } from './store.ts';

/** Longer than a host takes that is not busy with a flush. */
const WAIT_MS = 15_000;

/**
 * The instance once its running guest's root file system has the disk's new size, or as it is when the VM does not run, after a
 * while, or when `signal` aborts: the host goes on, and a guest that boots has the new size.
 */
export async function awaitGrowth(
  { db, hub }: { readonly db: Db; readonly hub: NotifyHub },
  org_id: OrgId,
  id: InstanceId,
  signal: AbortSignal,
): Promise<InstanceRow | undefined> {
  const look = async () => {
    const row = await hub.shared(`${org_id} ${id}`, () => findInstance(db, org_id, id));
    return row?.growth === 'next_boot' && row.state === 'running' ? undefined : { row };
  };
  const settled = await hub.waitFor('instance', id, WAIT_MS, look, signal);
  return settled ? settled.row : findInstance(db, org_id, id);
}
