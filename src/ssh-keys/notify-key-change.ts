import { notify } from '../db/notify.ts';
import type { Tx } from '../db/pool.ts';
import type { HostId } from '../lib/ids.ts';

/** Wakes hosts to push changed keys to their VMs, and the ingress to hold connections until the guests confirm. */
export async function notifyKeyChange(tx: Tx, hosts: readonly HostId[]): Promise<void> {
  for (const host_id of hosts) await notify(tx, 'host', host_id);
  if (hosts.length > 0) await notify(tx, 'routes');
}
