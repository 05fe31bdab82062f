import type { Config } from '../config/config.ts';
import type { Paths } from '../config/paths.ts';
import { StartError } from './start-error.ts';

/** `fits`: whether the database is this key's (`control-planes/secret-key.ts`). @throws StartError */
export function refuseWrongKey(
  fits: boolean,
  given: Pick<Config, 'secret_key'>,
  paths: Pick<Paths, 'secret_key'>,
): void {
  if (fits) return;
  const [which, remedy] =
    given.secret_key === null
      ? [paths.secret_key, 'restore that file from a backup, or set BERTH_SECRET_KEY']
      : ['BERTH_SECRET_KEY', `set the one used so far, or unset it if that is in ${paths.secret_key}`];
  throw new StartError(`${which}: is not the key that this database was made with; ${remedy}`, 2);
}
