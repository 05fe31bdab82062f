import { actorOf, type Principal } from '../auth/principal.ts';
import { notify } from '../db/notify.ts';
import { type Db, transaction, violates } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { AppError } from '../lib/errors.ts';
import { newId, type SshKeyId } from '../lib/ids.ts';
import { parsePublicKey } from './public-key.ts';
import { countSshKeys, deleteSshKey, hostsOfUserKeys, insertSshKey } from './store.ts';

export const MAX_KEYS_PER_ACCOUNT = 100;

/** Registers a key on the caller's account. @throws AppError INVALID_REQUEST, CONFLICT, QUOTA_EXCEEDED */
export async function addSshKey(db: Db, principal: Principal, request: { name: string; public_key: string }) {
  const key = parsePublicKey(request.public_key);
  try {
    return await transaction(db, async (tx) => {
      if ((await countSshKeys(tx, principal.user_id)) >= MAX_KEYS_PER_ACCOUNT) {
        throw new AppError('QUOTA_EXCEEDED', {
          message: `An account has at most ${MAX_KEYS_PER_ACCOUNT} SSH keys.`,
        });
      }
      const row = await insertSshKey(tx, {
        id: newId('key'),
        user_id: principal.user_id,
        name: request.name,
        type: key.type,
        fingerprint: key.fingerprint,
        public_key: key.line,
      });
      await append(tx, {
        org_id: principal.org_id,
        type: 'ssh_key.added',
        data: { ssh_key: { id: row.id, name: row.name, fingerprint: row.fingerprint } },
        actor: actorOf(principal),
      });
      for (const host_id of await hostsOfUserKeys(tx, principal.user_id)) await notify(tx, 'host', host_id);
      return row;
    });
  } catch (error) {
    if (violates(error, 'ssh_keys_user_id_fingerprint_key')) {
      throw new AppError('CONFLICT', {
        message: 'This key is registered on your account already.',
        cause: error,
      });
    }
    throw error;
  }
}

/** Revokes a key of the caller's account; every VM that let it in hears of it at once. */
export async function revokeSshKey(db: Db, principal: Principal, id: SshKeyId): Promise<void> {
  await transaction(db, async (tx) => {
    const hosts = await hostsOfUserKeys(tx, principal.user_id);
    const gone = await deleteSshKey(tx, principal.user_id, id);
    if (!gone) throw new AppError('NOT_FOUND');
    await append(tx, {
      org_id: principal.org_id,
      type: 'ssh_key.revoked',
      data: { ssh_key: gone },
      actor: actorOf(principal),
    });
    for (const host_id of hosts) await notify(tx, 'host', host_id);
  });
}
