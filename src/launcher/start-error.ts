/** Defines the error for problems of a start that the operator can fix (`StartError`), and prints it. */
import type { Config } from '../config/config.ts';
import type { Paths } from '../config/paths.ts';

/** A problem that the operator can fix: one line of text for each setting, and the exit code. */
export class StartError extends Error {
  override name = 'StartError';
  readonly exit_code: number;

  /** 2: change the settings or the machine first. 1: another try may succeed. */
  constructor(message: string, exit_code: 1 | 2 = 2, options?: ErrorOptions) {
    super(message, options);
    this.exit_code = exit_code;
  }
}

/** Prints one line for a person. */
export type Say = (line: string) => void;

export const sayOnStdout: Say = (line) => {
  process.stdout.write(`berth: ${line}\n`);
};

/** Prints the problems to stderr, and returns the exit code. */
export function refuse(error: StartError): number {
  for (const line of error.message.split('\n')) process.stderr.write(`berth: ${line}\n`);
  return error.exit_code;
}

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
