/** Sets and removes secrets of an instance, and gives those of a parent to its fork. */
import { SECRETS_MAX } from '../../protocol/host-types.ts';
import { AppError } from '../../shared/errors.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Sealer } from '../../shared/seal.ts';
import { notify } from '../db/notify.ts';
import type { Tx } from '../db/pool.ts';
import type { Principal } from '../identity/principal.ts';
import { lockInstanceOf, refuseDeleting } from '../instances/change-instance.ts';
import { ensureAuthority } from './authority.ts';
import { checkedHosts, checkName, checkValue, isName, newPlaceholder } from './model.ts';
import { openValue, sealValue } from './seal-value.ts';
import { deleteSecret, sealedSecrets, secretNames, upsertSecret } from './store.ts';

export interface SecretRef {
  readonly instance_id: InstanceId;
  readonly name: string;
}

/** What a change is recorded with; never the value. */
export interface SecretRecord {
  readonly instance_id: InstanceId;
  readonly name: string;
  readonly hosts: readonly string[];
}

/** Creates a secret, or replaces its value and hosts. @throws AppError INVALID_REQUEST, NOT_FOUND, CONFLICT, QUOTA_EXCEEDED */
export async function setSecret(
  tx: Tx,
  sealer: Sealer,
  principal: Principal,
  { instance_id, name }: SecretRef,
  { value, hosts: given }: { readonly value: string; readonly hosts: readonly string[] },
): Promise<SecretRecord> {
  checkValue(value);
  const hosts = checkedHosts(given);
  const instance = await lockInstanceOf(tx, principal, instance_id);
  // The name is part of the path: an instance that the caller may not know about is 404, whatever the name.
  checkName(name);
  refuseDeleting(instance);
  const names = await secretNames(tx, instance_id);
  if (!names.has(name) && names.size >= SECRETS_MAX) {
    throw new AppError('QUOTA_EXCEEDED', {
      message: `An instance has at most ${SECRETS_MAX} secrets. Delete one first.`,
      details: [{ field: 'secrets', issue: `quota ${SECRETS_MAX}, used ${names.size}, wanted 1` }],
    });
  }
  const sealed = sealValue(sealer, instance_id, name, value);
  await upsertSecret(tx, { instance_id, name, hosts, placeholder: newPlaceholder(), value: sealed });
  await ensureAuthority(tx, sealer, instance_id);
  if (instance.host_id !== null) await notify(tx, 'host', instance.host_id);
  return { instance_id, name, hosts };
}

/** @throws AppError NOT_FOUND, CONFLICT */
export async function removeSecret(
  tx: Tx,
  principal: Principal,
  { instance_id, name }: SecretRef,
): Promise<SecretRecord> {
  const instance = await lockInstanceOf(tx, principal, instance_id);
  // PostgreSQL cannot even compare one with NUL.
  const hosts = isName(name) && (await deleteSecret(tx, instance_id, name));
  if (!hosts) throw new AppError('NOT_FOUND');
  refuseDeleting(instance);
  if (instance.host_id !== null) await notify(tx, 'host', instance.host_id);
  return { instance_id, name, hosts };
}

export interface Inheritance {
  readonly from: InstanceId;
  readonly to: InstanceId;
  readonly with_values: boolean;
}

/**
 * Gives a fork the names, hosts and placeholders of its parent's secrets, and the values if they are wanted; then the caller has
 * passed {@link requireSecretsWrite}. A fork's disk may hold the parent's placeholders; they are looked up for each VM apart.
 */
export async function inheritSecrets(
  tx: Tx,
  sealer: Sealer,
  { from, to, with_values }: Inheritance,
): Promise<void> {
  for (const { name, hosts, placeholder, value } of await sealedSecrets(tx, [from])) {
    const kept =
      with_values && value !== null
        ? sealValue(sealer, to, name, openValue(sealer, from, name, value))
        : null;
    await upsertSecret(tx, { instance_id: to, name, hosts, placeholder, value: kept });
    if (kept !== null) await ensureAuthority(tx, sealer, to);
  }
}

/** @throws AppError FORBIDDEN */
export function requireSecretsWrite({ scopes }: Principal): void {
  if (scopes.has('vm:write')) return;
  throw new AppError('FORBIDDEN', {
    message: 'A fork with the values of the secrets needs the scope vm:write, and a role that has it.',
  });
}
