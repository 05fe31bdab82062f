import { notifyAll } from '../db/notify.ts';
import type { Tx } from '../db/pool.ts';
import type { VmPlace } from './store.ts';

/** Wakes hosts to push changed keys to these VMs, and ingresses to hold connections until the guests confirm. */
export async function notifyKeyChange(tx: Tx, vms: readonly VmPlace[]): Promise<void> {
  const hosts = new Set(vms.map(({ host_id }) => host_id));
  await notifyAll(tx, 'host', [...hosts]);
  await notifyAll(
    tx,
    'routes',
    vms.map(({ instance_id }) => instance_id),
  );
}
