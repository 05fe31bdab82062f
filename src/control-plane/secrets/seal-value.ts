/** Seals the values of secrets. A value is bound to its instance and name, so no row opens as another's. */
import type { InstanceId } from '../../shared/ids.ts';
import { Sealer } from '../../shared/seal.ts';

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
