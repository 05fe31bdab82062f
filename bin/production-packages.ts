/**
 * Lists the folders below node_modules that a package of the whole program must include: those that the program needs
 * to run according to package-lock.json, and that are installed on this machine. One a line, parents before children.
 */
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';

const PROJECT = join(import.meta.dirname, '..');

type Names = Readonly<Record<string, unknown>>;

interface Locked {
  readonly dependencies?: Names;
  readonly optionalDependencies?: Names;
  readonly peerDependencies?: Names;
  readonly peerDependenciesMeta?: Readonly<Record<string, { readonly optional?: boolean }>>;
}

function needs({
  dependencies,
  optionalDependencies,
  peerDependencies,
  peerDependenciesMeta,
}: Locked): string[] {
  const peers = Object.keys(peerDependencies ?? {}).filter(
    (name) => peerDependenciesMeta?.[name]?.optional !== true,
  );
  return [...Object.keys({ ...dependencies, ...optionalDependencies }), ...peers];
}

/** Where Node finds `name` from the package in `from` ('' is the project): beside it, or beside one of its parents. */
function found(packages: Names, from: string, name: string): string | undefined {
  for (let folder = from; ; ) {
    const path = join(folder, 'node_modules', name);
    if (path in packages) return path;
    if (folder === '') return undefined;
    const above = folder.lastIndexOf('node_modules/');
    folder = above <= 0 ? '' : folder.slice(0, above - 1);
  }
}

export function productionPackages(project = PROJECT): readonly string[] {
  const { packages } = JSON.parse(readFileSync(join(project, 'package-lock.json'), 'utf8')) as {
    packages: Readonly<Record<string, Locked>>;
  };
  const reached = new Set<string>();
  const open = [''];
  for (let at = open.pop(); at !== undefined; at = open.pop()) {
    for (const name of needs(packages[at] ?? {})) {
      const path = found(packages, at, name);
      if (path === undefined || reached.has(path) || !existsSync(join(project, path, 'package.json')))
        continue;
      reached.add(path);
      open.push(path);
    }
  }
  return [...reached].sort();
}

if (import.meta.main)
  process.stdout.write(
    productionPackages()
      .map((path) => `${path}\n`)
      .join(''),
  );
