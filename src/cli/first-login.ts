/**
 * Finds the first administrator's generated password in a data folder on this machine, if this user may read it, so that the
 * first login needs no input.
 */
import { readFileSync, rmSync, statSync } from 'node:fs';
import { join, resolve } from 'node:path';
import type { Env } from '../config/env.ts';

export interface FirstLogin {
  readonly email: string;
  readonly password: string;
  readonly path: string;
}

const LOOPBACK = ['127.0.0.1', 'localhost', '[::1]'];

export const isLocal = (url: string) => LOOPBACK.includes(new URL(url).hostname);

/** Whether the host name is this machine. */
function isSame(url: string, at: string): boolean {
  const [one, other] = [new URL(url), new URL(at)];
  return isLocal(url) && one.protocol === other.protocol && one.port === other.port;
}

/** Possible data folders of a server on this machine; `trusted`: a setting names it. */
export function dataFolders(env: Env): readonly { readonly folder: string; readonly trusted: boolean }[] {
  const given = env['BERTH_DATA_DIR'];
  if (given !== undefined) return [{ folder: given, trusted: true }];
  // Of npm start in this folder; the checkout's; the Debian package's.
  const usual = ['data', join(import.meta.dirname, '..', '..', 'data'), '/var/lib/berth'];
  return usual.map((folder) => ({ folder, trusted: false }));
}

/** Of the server at `url`, or of any on this machine. Undefined when there is none that we may read. */
export function findFirstLogin(env: Env, url?: string): (FirstLogin & { readonly url: string }) | undefined {
  for (const { folder, trusted } of dataFolders(env)) {
    const path = resolve(folder, 'secrets', 'first-login');
    try {
      const found = JSON.parse(readFileSync(path, 'utf8')) as Record<string, unknown>;
      const { email, password, url: at } = found;
      if (typeof email !== 'string' || typeof password !== 'string' || typeof at !== 'string') continue;
      // The current folder may be another user's: ignore a foreign file, and a file that names another machine.
      if (!trusted && ![0, process.getuid?.()].includes(statSync(path).uid)) continue;
      if (!isLocal(at) || (url !== undefined && !isSame(url, at))) continue;
      return { email, password, path, url: at };
    } catch {
      // Missing, or not readable.
    }
  }
  return undefined;
}

/** Deletes the file when its password no longer works. */
export function forgetFirstLogin({ path }: FirstLogin): void {
  rmSync(path, { force: true });
}
