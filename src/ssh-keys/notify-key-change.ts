import { notify } from '../db/notify.ts';
import type { Tx } from '../db/pool.ts';
import type { HostId } from '../lib/ids.ts';

/** Keys that VMs let in have changed: their hosts push the new set, and the ingress watches that it comes to hold. */
export async function notifyKeyChange(tx: Tx, hosts: readonly HostId[]): Promise<void> {
  for (const host_id of hosts) await notify(tx, 'host', host_id);
  if (hosts.length > 0) await notify(tx, 'routes');
}
