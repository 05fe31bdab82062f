/**
 * Certificate authorities for intercepted connections, one for each instance that has values of secrets, so that a host can sign
 * only for the guests that it runs. One is made with the first value and ends with the last secret. A private key is unencrypted
 * in memory only, here and on the host.
 */
import type { SecretsAuthority } from '../../protocol/host-types.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { Sealer } from '../../shared/seal.ts';
import type { Tx } from '../db/pool.ts';
import { findAuthorities, insertAuthority } from './store.ts';

const boundTo = (instance_id: InstanceId) => `authority ${instance_id}`;

/** The caller has locked the instance. */
export async function ensureAuthority(tx: Tx, sealer: Sealer, instance_id: InstanceId): Promise<void> {
  if ((await findAuthorities(tx, [instance_id])).length > 0) return;
  const { makeAuthority } = await import('./make-authority.ts');
  const { certificate, private_key } = await makeAuthority(instance_id);
  const sealed = sealer.seal(private_key, boundTo(instance_id));
  await insertAuthority(tx, { instance_id, certificate, private_key: sealed });
}

export async function authoritiesOf(
  tx: Tx,
  sealer: Sealer,
  ids: readonly InstanceId[],
): Promise<ReadonlyMap<InstanceId, SecretsAuthority>> {
  const found = new Map<InstanceId, SecretsAuthority>();
  for (const { instance_id, certificate, private_key: sealed } of await findAuthorities(tx, ids)) {
    const private_key = sealer.open(sealed, boundTo(instance_id));
    if (private_key === null) throw new Error(`the key of the authority of ${instance_id} does not open`);
    found.set(instance_id, { certificate, private_key });
  }
  return found;
}
