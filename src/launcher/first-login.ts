/**
 * The generated password of the first administrator, in a file that only the server's user can read. `berth login` on this
 * machine reads it (`cli/first-login.ts`), and deletes it when the password has changed.
 */
import { readFile } from 'node:fs/promises';
import type { Paths } from '../config/paths.ts';
import { errnoOf } from '../shared/errors.ts';
import { writeSecret } from './data-folder.ts';

export interface FirstLogin {
  /** Of the API on this machine. */
  readonly url: string;
  readonly email: string;
  readonly password: string;
}

export function keepFirstLogin(paths: Pick<Paths, 'first_login'>, login: FirstLogin): Promise<void> {
  return writeSecret(paths.first_login, `${JSON.stringify(login)}\n`);
}

/** Undefined when it never existed, or was deleted. */
export async function readFirstLogin(paths: Pick<Paths, 'first_login'>): Promise<FirstLogin | undefined> {
  try {
    return JSON.parse(await readFile(paths.first_login, 'utf8')) as FirstLogin;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return undefined;
    throw error;
  }
}
