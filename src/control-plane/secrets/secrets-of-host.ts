/** The secrets that hosts use for their VMs. */
import type { SecretForHost } from '../../protocol/host-types.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Sealer } from '../../shared/seal.ts';
import type { Tx } from '../db/pool.ts';
import { openValue } from './seal-value.ts';
import { sealedSecrets } from './store.ts';

/** Those with a value, sorted by name. */
export async function secretsOf(
  tx: Tx,
  sealer: Sealer,
  ids: readonly InstanceId[],
): Promise<ReadonlyMap<InstanceId, SecretForHost[]>> {
  const found = new Map<InstanceId, SecretForHost[]>();
  for (const { instance_id, name, placeholder, hosts, value } of await sealedSecrets(tx, ids)) {
    if (value === null) continue;
    const secret = { name, placeholder, hosts, value: openValue(sealer, instance_id, name, value) };
    found.set(instance_id, [...(found.get(instance_id) ?? []), secret]);
  }
  for (const each of found.values()) each.sort((a, b) => (a.name < b.name ? -1 : 1));
  return found;
}
