/**
 * What a package of the whole program brings along: the folders below node_modules that package-lock.json has for
 * running it (not for developing it) and that are installed on this machine. One a line, parents before children.
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

const PROJECT = join(import.meta.dirname, '..');

interface Locked {
  readonly dev?: boolean;
  readonly devOptional?: boolean;
}

export function productionPackages(project = PROJECT): readonly string[] {
  const lock = JSON.parse(readFileSync(join(project, 'package-lock.json'), 'utf8')) as {
    packages: Readonly<Record<string, Locked>>;
  };
  return Object.entries(lock.packages)
    .filter(([path, { dev, devOptional }]) => path !== '' && dev !== true && devOptional !== true)
    .map(([path]) => path)
    .filter((path) => existsSync(join(project, path, 'package.json')))
    .sort();
}

if (import.meta.main) process.stdout.write(productionPackages().map((path) => `${path}\n`).join(''));
