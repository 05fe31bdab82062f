/** Files of the data folder that weaken an installation. */
import { existsSync, lstatSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import type { WeakSetting } from '../config/weak-settings.ts';

/** @param secrets the folder of the secrets */
export function weakFiles(secrets: string): WeakSetting[] {
  const weak: WeakSetting[] = [];
  const open = [secrets, ...readdirSync(secrets).map((name) => join(secrets, name))].filter(
    (path) => (lstatSync(path).mode & 0o077) !== 0,
  );
  if (open.length > 0) {
    const found = `others on this machine may read ${open.join(', ')}: they open the database and the disks`;
    weak.push({ check: 'secrets', found, next: `chmod -R go= ${secrets}` });
  }
  const first_login = join(secrets, 'first-login');
  if (existsSync(first_login)) {
    const found = `the first administrator's generated password is still in ${first_login}`;
    weak.push({
      check: 'first login',
      found,
      next: `berth login, berth account password, then rm ${first_login}`,
    });
  }
  return weak;
}
