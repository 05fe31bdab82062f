import { present } from '../../shared/assert.ts';
import { newId, type UserId } from '../../shared/ids.ts';
import { revokeKeysOf } from '../api-keys/revoke-api-key.ts';
import type { Tx } from '../db/pool.ts';
import { organisationsOf } from '../organisations/member-store.ts';
import { type ChangedKey, revokeSshKey } from '../ssh-keys/account-keys.ts';
import { sshKeyIdsOf } from '../ssh-keys/store.ts';
import { removeAllFactors } from './mfa/factors.ts';
import type { Principal } from './principal.ts';
import { firstOrganisation } from './store.ts';
import { countWaysIn, type WaysIn } from './ways-in-store.ts';

export interface RemovedWaysIn {
  readonly count: WaysIn;
  /** For the audit logs of the organisations to which the keys give access. */
  readonly ssh_keys: readonly ChangedKey[];
}

/** Removes every API key, SSH key and second factor of an account. Keys that it made for service accounts remain. */
export async function removeWaysIn(tx: Tx, user_id: UserId): Promise<RemovedWaysIn> {
  const count = await countWaysIn(tx, user_id);
  for (const org_id of await organisationsOf(tx, user_id))
    await revokeKeysOf(tx, org_id, { user_id }, user_id);
  const principal = await asInASession(tx, user_id);
  const ssh_keys: ChangedKey[] = [];
  for (const id of await sshKeyIdsOf(tx, user_id)) ssh_keys.push(await revokeSshKey(tx, principal, id));
  await removeAllFactors(tx, user_id, user_id);
  return { count, ssh_keys };
}

/** The account's owner, verified by the address and without a session. */
async function asInASession(tx: Tx, user_id: UserId): Promise<Principal> {
  return {
    credential: { kind: 'session', id: newId('sess'), user_id, email_confirmed: true },
    org_id: present(await firstOrganisation(tx, user_id), 'an organisation of every account'),
    role: null,
    scopes: new Set(),
  };
}
