/**
 * Encrypts the values of secrets for the database, and decrypts those that a host needs for its VMs. A ciphertext is
 * bound to the secret's instance and name, so it does not decrypt in the row of another secret.
 */
import type { SecretForHost } from '../../protocol/host-types.ts';
import type { InstanceId } from '../../shared/ids.ts';
import { Sealer } from '../../shared/seal.ts';
import type { Tx } from '../db/pool.ts';
import { sealedSecrets } from './store.ts';

export function secretSealer(root_key: Uint8Array): Sealer {
  return new Sealer(root_key, 'berth secrets v1');
}

const boundTo = (instance_id: InstanceId, name: string) => JSON.stringify([instance_id, name]);

export function sealValue(sealer: Sealer, instance_id: InstanceId, name: string, value: string): Buffer {
  return sealer.seal(value, boundTo(instance_id, name));
}

/** @throws Error if it was sealed with another key, or for another secret */
export function openValue(sealer: Sealer, instance_id: InstanceId, name: string, sealed: Buffer): string {
  const value = sealer.open(sealed, boundTo(instance_id, name));
  if (value === null) throw new Error(`the secret ${name} of ${instance_id} does not open`);
  return value;
}

/** The secrets that hosts use for these instances: those with a value, sorted by name. */
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
