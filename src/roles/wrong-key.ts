/**
 * Another secret key than the one that the database was filled with opens no disk and no second factor, and its entries do
 * not fit into the audit log's chains. It would be noticed one failure at a time, and what is written meanwhile is under
 * the wrong key: so nothing starts with it.
 */
import { AuditLog } from '../audit/append.ts';
import type { Config } from '../config/config.ts';
import type { Paths } from '../config/paths.ts';
import type { Db } from '../db/pool.ts';
import { dataKeysOpen, diskKeys } from '../disks/data-keys.ts';
import { StartError } from '../launch/start-error.ts';

/** @throws StartError if what the database has was not sealed with `secret_key` */
export async function refuseWrongKey(
  db: Db,
  secret_key: Buffer,
  given: Pick<Config, 'secret_key'>,
  paths: Pick<Paths, 'secret_key'>,
): Promise<void> {
  const fits =
    (await dataKeysOpen(db, diskKeys(secret_key, true))) ??
    (await new AuditLog(secret_key).beganWithThisKey(db));
  if (fits !== false) return;
  const [which, remedy] =
    given.secret_key === null
      ? [paths.secret_key, 'bring that file back from a backup, or set BERTH_SECRET_KEY']
      : ['BERTH_SECRET_KEY', `set the one used so far, or unset it if that is in ${paths.secret_key}`];
  throw new StartError(`${which}: is not the key that this database was made with; ${remedy}`, 2);
}
