import type { LoginsReport } from '../../protocol/types.ts';
import type { HostId } from '../../shared/ids.ts';
import { type Db, transaction } from '../db/pool.ts';
import { markKeysUsed } from '../ssh-keys/store.ts';
import { findVm, newestVm } from './store.ts';

/** Sets `last_used_at` of keys that logged in. A guest is believed only about keys that its instance allows. */
export async function recordLogins(
  db: Db,
  host_id: HostId,
  { vm_id, epoch, fingerprints }: LoginsReport,
): Promise<'accepted' | 'fenced'> {
  return transaction(db, async (tx) => {
    const vm = await findVm(tx, vm_id);
    if (!vm || vm.host_id !== host_id || vm.epoch !== epoch) return 'fenced';
    if ((await newestVm(tx, vm.instance_id))?.id !== vm_id) return 'fenced';
    await markKeysUsed(tx, vm.instance_id, fingerprints);
    return 'accepted';
  });
}
