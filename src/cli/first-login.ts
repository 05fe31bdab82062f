/**
 * The first administrator's password, which Berth generated on this machine: found where its data folder may be, by who
 * may read it. First use asks nothing that it can find out.
 */
import { readFileSync, rmSync } from 'node:fs';
import { join, resolve } from 'node:path';
import type { Env } from '../config/env.ts';

export interface FirstLogin {
  readonly email: string;
  readonly password: string;
  readonly path: string;
}

/** Of the server at `url`; undefined where there is none, or where it is not ours to read. */
export function findFirstLogin(env: Env, url: string): FirstLogin | undefined {
  const given = env['BERTH_DATA_DIR'];
  const folders =
    given === undefined
      ? // Where npm start was said; the checkout; the Debian package's.
        ['data', join(import.meta.dirname, '..', '..', 'data'), '/var/lib/berth']
      : [given];
  for (const folder of folders) {
    const path = resolve(folder, 'secrets', 'first-login');
    try {
      const found = JSON.parse(readFileSync(path, 'utf8')) as Record<string, unknown>;
      const { email, password } = found;
      if (found['url'] !== url || typeof email !== 'string' || typeof password !== 'string') continue;
      return { email, password, path };
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
