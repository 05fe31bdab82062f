/**
 * The generated password of the first administrator, in a file that only the server's own user reads, beside the key
 * that opens the database anyway. `berth login` on this machine finds it (`cli/first-login.ts`), so that nobody has to
 * copy it, and removes it once it is not the password any more.
 */
import { readFile } from 'node:fs/promises';
import type { Paths } from '../config/paths.ts';
import { errnoOf } from '../lib/errors.ts';
import { writeSecret } from './data-folder.ts';

export interface FirstLogin {
  /** Of the API, on this machine. */
  readonly url: string;
  readonly email: string;
  readonly password: string;
}

export function keepFirstLogin(paths: Pick<Paths, 'first_login'>, login: FirstLogin): Promise<void> {
  return writeSecret(paths.first_login, `${JSON.stringify(login)}\n`);
}

/** Undefined where there is none (any more). */
export async function readFirstLogin(paths: Pick<Paths, 'first_login'>): Promise<FirstLogin | undefined> {
  try {
    return JSON.parse(await readFile(paths.first_login, 'utf8')) as FirstLogin;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}
