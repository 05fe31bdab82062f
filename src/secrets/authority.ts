/**
 * Certificate authorities for intercepted connections, one for each instance, so that a host can sign only for the guests that it
 * runs. One is made when a host first needs it, and ends with the instance's last secret. A fork has its parent's, which its disk
 * trusts. A private key is unencrypted in memory only, here and on the host.
 */
import type { SecretsAuthority } from '../agent-api/secret-types.ts';
import type { Tx } from '../db/pool.ts';
import type { InstanceId } from '../lib/ids.ts';
import type { Sealer } from '../lib/seal.ts';
import { type AuthorityRow, findAuthorities, insertAuthority } from './store.ts';

const boundTo = (instance_id: InstanceId) => `authority ${instance_id}`;

/** Makes those that are missing. If two control planes make one at the same time, the first stays. */
export async function authoritiesOf(
  tx: Tx,
  sealer: Sealer,
  ids: readonly InstanceId[],
): Promise<ReadonlyMap<InstanceId, SecretsAuthority>> {
  const found = new Map((await findAuthorities(tx, ids)).map((row) => [row.instance_id, row]));
  const missing = ids.filter((id) => !found.has(id));
  if (missing.length > 0) {
    const { makeAuthority } = await import('./make-authority.ts');
    for (const id of missing) await keep(tx, sealer, id, await makeAuthority(id));
    for (const row of await findAuthorities(tx, missing)) found.set(row.instance_id, row);
  }
  return new Map([...found].map(([id, row]) => [id, opened(sealer, row)]));
}

/** Gives a fork its parent's, if that has one. */
export async function inheritAuthority(
  tx: Tx,
  sealer: Sealer,
  { from, to }: { readonly from: InstanceId; readonly to: InstanceId },
): Promise<void> {
  const [row] = await findAuthorities(tx, [from]);
  if (row) await keep(tx, sealer, to, opened(sealer, row));
}

async function keep(
  tx: Tx,
  sealer: Sealer,
  instance_id: InstanceId,
  { certificate, private_key }: SecretsAuthority,
): Promise<void> {
  const sealed = sealer.seal(private_key, boundTo(instance_id));
  await insertAuthority(tx, { instance_id, certificate, private_key: sealed });
}

function opened(sealer: Sealer, row: AuthorityRow): SecretsAuthority {
  const private_key = sealer.open(row.private_key, boundTo(row.instance_id));
  if (private_key === null) throw new Error(`the key of the authority of ${row.instance_id} does not open`);
  return { certificate: row.certificate, private_key };
}
