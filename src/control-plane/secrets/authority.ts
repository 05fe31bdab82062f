/**
 * Keeps a certificate authority for each instance that has secrets with values. With it, the instance's host signs
 * certificates for the TLS connections that it intercepts to put secrets into requests. A host gets the authorities of
 * its own guests only, so it can sign for no others.
 *
 * An authority is made with the first value, and deleted with the last secret. Its private key is unencrypted in memory
 * only, here and on the host.
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
