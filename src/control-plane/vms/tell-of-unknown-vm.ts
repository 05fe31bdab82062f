/**
 * A host has an overlay of a VM that the database does not know: the database was set back to an earlier time, and the instance has
 * continued without what that VM wrote. Its owner is told.
 */
import type { ReportResponse, UnknownVmReport } from '../../protocol/types.ts';
import type { HostId } from '../../shared/ids.ts';
import { type Db, transaction } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { wasAppendedLately } from '../events/store.ts';
import { getInstance, lockInstance } from '../instances/store.ts';
import { instanceView } from '../instances/view.ts';
import { findVm, hostNameOf } from './store.ts';

/** `ignored`: the VM is known, or its host's next start tells of it. `fenced`: there is no such instance. */
export async function tellOfUnknownVm(
  db: Db,
  host_id: HostId,
  { instance_id, vm_id }: UnknownVmReport,
): Promise<ReportResponse['outcome']> {
  return transaction(db, async (tx) => {
    await lockInstance(tx, instance_id);
    const row = await getInstance(tx, instance_id);
    if (!row || row.deleting) return 'fenced';
    if (await findVm(tx, vm_id)) return 'ignored';
    // The next start there finds the overlay, and reports what is lost.
    if (row.host_id === host_id) return 'ignored';
    // A host that makes up VMs cannot flood an owner.
    if (await wasAppendedLately(tx, instance_id, 'vm.recovered', host_id)) return 'ignored';
    const message = `The database was set back to an earlier time. A VM of this instance ran after that time on host ${await hostNameOf(tx, host_id)}; what it wrote is not on the instance's disk. That host keeps a copy: ask the operator.`;
    const instance = instanceView(row);
    const reason = { code: 'recovered' as const, message, actor: host_id };
    await append(tx, {
      org_id: row.org_id,
      instance_id,
      type: 'vm.recovered',
      data: { instance: { ...instance, vm: { ...instance.vm, reason } } },
      actor: host_id,
    });
    return 'accepted';
  });
}
