/**
 * Stores the user's logins in `$XDG_CONFIG_HOME/berth/config.json`, one for each profile. Only the user can read the
 * file, and it is replaced atomically.
 */
import {
  chmodSync,
  existsSync,
  mkdirSync,
  readFileSync,
  realpathSync,
  renameSync,
  writeFileSync,
} from 'node:fs';
import { userInfo } from 'node:os';
import { join } from 'node:path';
import type { Env } from '../config/env.ts';
import { CommandError } from './command-error.ts';

export interface SudoGrant {
  readonly session_token: string;
  readonly cookie: string;
  readonly expires_at: string;
}

export interface Profile {
  readonly url: string;
  readonly email: string;
  /** The account's address; older logins lack it. */
  readonly user_id?: string;
  readonly org_id: string;
  readonly api_key_id: string;
  readonly api_key: string;
  /** The user confirmed the login in a browser, and so confirms again in place of a password. */
  readonly in_browser?: true;
  readonly sudo?: SudoGrant;
}

/** What remains of a login after `berth logout`, for the next one. */
export type LoggedOut = Pick<Profile, 'url' | 'email'> & Partial<Pick<Profile, 'org_id'>>;

export interface Profiles {
  /** Of the last login. */
  readonly current: string | null;
  readonly profiles: Readonly<Record<string, Profile>>;
  readonly logged_out?: Readonly<Record<string, LoggedOut>>;
}

/** The home folder from /etc/passwd when HOME is empty, as in some containers. */
export const homeFolder = (env: Env) => env['HOME'] || userInfo().homedir;

export function configFolder(env: Env): string {
  return join(env['XDG_CONFIG_HOME'] || join(homeFolder(env), '.config'), 'berth');
}

const fileIn = (env: Env) => join(configFolder(env), 'config.json');

export function readProfiles(env: Env): Profiles {
  const path = fileIn(env);
  let text: string;
  try {
    text = readFileSync(path, 'utf8');
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'ENOENT') return { current: null, profiles: {} };
    throw new CommandError(`${path} cannot be read: ${(error as Error).message}`);
  }
  try {
    const found = JSON.parse(text) as Profiles;
    if (typeof found.profiles === 'object') return found;
  } catch {}
  throw new CommandError(`${path} is damaged`, { next: `rm ${path}, then berth login` });
}

export function writeProfiles(env: Env, profiles: Profiles): void {
  writePrivate(configFolder(env), 'config.json', `${JSON.stringify(profiles, null, 2)}\n`);
}

/** Writes a private file. @returns its path */
export function writePrivate(folder: string, name: string, text: string): string {
  mkdirSync(folder, { recursive: true, mode: 0o700 });
  const named = join(folder, name);
  // A symbolic link stays one: some people link their dot files.
  const path = existsSync(named) ? realpathSync(named) : named;
  const beside = `${path}.${process.pid}`;
  writeFileSync(beside, text, { mode: 0o600 });
  // `mode` above applies only to a new file.
  chmodSync(beside, 0o600);
  renameSync(beside, path);
  return path;
}
