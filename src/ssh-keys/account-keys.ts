import { actorOf, type Principal, userOf } from '../auth/principal.ts';
import { lockUser } from '../auth/store.ts';
import { type Tx, violates } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { AppError } from '../lib/errors.ts';
import { newId, type SshKeyId } from '../lib/ids.ts';
import { type QuotaLimits, requireWithin } from '../lib/quotas.ts';
import { parsePublicKey } from './public-key.ts';
import { countSshKeys, deleteSshKey, hostsOfUserKeys, insertSshKey, lockSshKey } from './store.ts';
import { tellOfKeys } from './tell-of-keys.ts';
import { sshKeyView } from './view.ts';

/** Registers a key on the caller's account. @throws AppError INVALID_REQUEST, CONFLICT, QUOTA_EXCEEDED */
export async function addSshKey(
  tx: Tx,
  quotas: QuotaLimits,
  principal: Principal,
  request: { name: string; public_key: string },
) {
  const { type, fingerprint, line } = parsePublicKey(request.public_key);
  const user_id = userOf(principal);
  // The account's keys come one after the other, so that they are counted as they are.
  await lockUser(tx, user_id);
  requireWithin('ssh_keys', quotas.ssh_keys, await countSshKeys(tx, user_id));
  const key = { id: newId('key'), user_id, name: request.name, type, fingerprint, public_key: line };
  const row = await insertSshKey(tx, key).catch((error: unknown) => {
    if (!violates(error, 'ssh_keys_user_id_fingerprint_key')) throw error;
    throw new AppError('CONFLICT', {
      message: 'This key is registered on your account already.',
      cause: error,
    });
  });
  await append(tx, {
    org_id: principal.org_id,
    type: 'ssh_key.added',
    data: { ssh_key: sshKeyView(row) },
    actor: actorOf(principal),
  });
  await tellOfKeys(tx, await hostsOfUserKeys(tx, user_id));
  return row;
}

/** Revokes a key of the caller's account; every VM that let it in hears of it at once. @throws AppError NOT_FOUND */
export async function revokeSshKey(tx: Tx, principal: Principal, id: SshKeyId) {
  const user_id = userOf(principal);
  await lockSshKey(tx, user_id, id);
  const hosts = await hostsOfUserKeys(tx, user_id);
  const gone = await deleteSshKey(tx, user_id, id);
  if (!gone) throw new AppError('NOT_FOUND');
  await append(tx, {
    org_id: principal.org_id,
    type: 'ssh_key.revoked',
    data: { ssh_key: sshKeyView(gone) },
    actor: actorOf(principal),
  });
  await tellOfKeys(tx, hosts);
  return gone;
}
