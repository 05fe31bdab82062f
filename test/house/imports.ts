/** Which file of the tree imports which, read from the text. */
import { readdirSync, readFileSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';

export const PROJECT = join(import.meta.dirname, '..', '..');

export interface Import {
  /** Below the project: `src/control-plane/app.ts`. */
  readonly from: string;
  readonly to: string;
  /** Types alone: nothing is loaded at run time. */
  readonly type_only: boolean;
  /** By `import(…)`: loaded when it is needed. */
  readonly lazy: boolean;
}

/** Files with one of these endings below `folder`, without what is installed or made by running. */
export function filesBelow(folder: string, endings: readonly string[]): string[] {
  const skipped = /(^|\/)(node_modules|\.cache|\.git|data|coverage|dist)(\/|$)/;
  return readdirSync(join(PROJECT, folder), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && endings.some((ending) => entry.name.endsWith(ending)))
    .map((entry) => relative(PROJECT, join(entry.parentPath, entry.name)))
    .filter((path) => !skipped.test(path))
    .sort();
}

export function read(path: string): string {
  return readFileSync(join(PROJECT, path), 'utf8');
}

/** `import … from` and `export … from`; then `import '…'` and `import('…')`. */
const FROM = /^(?:import|export)\s+(type\s+)?([^'";]*?)\s*from\s+'([^']+)'/gm;
const BARE = /^import\s+'([^']+)'|\bimport\('([^']+)'\)/gm;

/** The relative imports of a file. */
export function importsOf(path: string): Import[] {
  const text = read(path);
  const found: Omit<Import, 'from'>[] = [];
  for (const [, type, names = '', to = ''] of text.matchAll(FROM)) {
    const inner = /^\{(.*)\}$/s
      .exec(names)?.[1]
      ?.split(',')
      .map((name) => name.trim());
    const all_types = inner?.filter((name) => name !== '').every((name) => name.startsWith('type ')) ?? false;
    found.push({ to, type_only: type !== undefined || all_types, lazy: false });
  }
  for (const [, bare, dynamic] of text.matchAll(BARE)) {
    found.push({ to: bare ?? dynamic ?? '', type_only: false, lazy: bare === undefined });
  }
  return found
    .filter(({ to }) => to.startsWith('.'))
    .map(({ to, type_only, lazy }) => ({
      from: path,
      to: relative(PROJECT, join(PROJECT, dirname(path), to)),
      type_only,
      lazy,
    }));
}

/**
 * The program or library that a file is of: `host` for `src/host/qemu/confinement.ts`, `main` for `src/main.ts`. Beside `src` are `client`,
 * `console` and `adapters`. What backs up and restores a whole machine runs without the control plane, so it is a room of its own.
 */
export function roomOf(path: string): string {
  if (path.startsWith('console/src/')) return 'console';
  if (path.startsWith('client/src/')) return 'client';
  if (path.startsWith('adapters/')) return 'adapters';
  if (path.startsWith('src/control-plane/backup/')) return 'backup';
  return (path.split('/')[1] ?? '').replace(/\.ts$/, '');
}

/** The part of the control plane that a file is of: `webhooks`, or `app` for `src/control-plane/app.ts`. null: of another program. */
export function partOf(path: string): string | null {
  if (!path.startsWith('src/control-plane/')) return null;
  return (path.split('/')[2] ?? '').replace(/\.ts$/, '');
}

export const isTest = (path: string) => path.endsWith('.test.ts');
