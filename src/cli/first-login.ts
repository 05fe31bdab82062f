/**
 * The first administrator's password, which Berth generated on this machine: found where its data folder may be, by who
 * may read it. First use asks nothing that it can find out.
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

/** This machine has several names. */
function isSame(url: string, at: string): boolean {
  const [one, other] = [new URL(url), new URL(at)];
  return isLocal(url) && one.protocol === other.protocol && one.port === other.port;
}

/** Where the data folder of a server on this machine may be; `trusted`: somebody has said so. */
export function dataFolders(env: Env): readonly { readonly folder: string; readonly trusted: boolean }[] {
  const given = env['BERTH_DATA_DIR'];
  if (given !== undefined) return [{ folder: given, trusted: true }];
  // Where npm start was said; the checkout; the Debian package's.
  const usual = ['data', join(import.meta.dirname, '..', '..', 'data'), '/var/lib/berth'];
  return usual.map((folder) => ({ folder, trusted: false }));
}

/** Of the server at `url`, or of any on this machine; undefined where there is none, or where it is not ours to read. */
export function findFirstLogin(env: Env, url?: string): (FirstLogin & { readonly url: string }) | undefined {
  for (const { folder, trusted } of dataFolders(env)) {
    const path = resolve(folder, 'secrets', 'first-login');
    try {
      const found = JSON.parse(readFileSync(path, 'utf8')) as Record<string, unknown>;
      const { email, password, url: at } = found;
      if (typeof email !== 'string' || typeof password !== 'string' || typeof at !== 'string') continue;
      // The folder one is in may be anybody's: another's file is none there, and such a file leads to nowhere but this machine.
      if (!trusted && ![0, process.getuid?.()].includes(statSync(path).uid)) continue;
      if (!isLocal(at) || (url !== undefined && !isSame(url, at))) continue;
      return { email, password, path, url: at };
    } catch {
      // Not there, or not ours.
    }
  }
  return undefined;
}

/** For one that is not the password any more. */
export function forgetFirstLogin({ path }: FirstLogin): void {
  rmSync(path, { force: true });
}
