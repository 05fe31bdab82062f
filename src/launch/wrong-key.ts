/**
 * Another secret key than the one that the database was filled with opens no disk and no second factor, and its entries do
 * not fit into the audit log's chains. It would be noticed one failure at a time, and what is written meanwhile is under
 * the wrong key: so nothing starts with it, and no command on the server runs with it.
 */
import type { Config } from '../config/config.ts';
import type { Paths } from '../config/paths.ts';
import { StartError } from './start-error.ts';

/**
 * `fits`: whether what the database has was sealed with the key; null: it has nothing yet.
 * @throws StartError where it was not
 */
export function refuseWrongKey(
  fits: boolean | null,
  given: Pick<Config, 'secret_key'>,
  paths: Pick<Paths, 'secret_key'>,
): void {
  if (fits !== false) return;
  const [which, remedy] =
    given.secret_key === null
      ? [paths.secret_key, 'bring that file back from a backup, or set BERTH_SECRET_KEY']
      : ['BERTH_SECRET_KEY', `set the one used so far, or unset it if that is in ${paths.secret_key}`];
  throw new StartError(`${which}: is not the key that this database was made with; ${remedy}`, 2);
}
