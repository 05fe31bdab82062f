import type { Config } from '../config/config.ts';
import type { Paths } from '../config/paths.ts';
import { StartError } from './start-error.ts';

/** `root_key` is null if the secret key does not open it (`control-plane/fleet/root-key.ts`). @throws StartError */
export function refuseWrongKey(
  root_key: Buffer | null,
  given: Pick<Config, 'secret_key'>,
  paths: Pick<Paths, 'secret_key'>,
): Buffer {
  if (root_key !== null) return root_key;
  const [which, remedy] =
    given.secret_key === null
      ? [paths.secret_key, 'put the right one there, from a backup, or set BERTH_SECRET_KEY']
      : ['BERTH_SECRET_KEY', `set the right one, or unset it if that is in ${paths.secret_key}`];
  throw new StartError(`${which}: is not the key of this database; ${remedy}`, 2);
}
