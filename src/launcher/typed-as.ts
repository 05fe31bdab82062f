/** The command to type for Berth on this machine, for the messages of a start. */
import { existsSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';

/**
 * Its name if it is on the PATH, the path in a checkout, or npm's link.
 * @param program a file of this program: source, or built below `dist/` of its package
 * @param search_path as in `PATH`
 */
export function typedAs(program: string, search_path: string, cwd: string): string {
  if (program.endsWith('.ts')) return 'bin/berth';
  const name = 'berth';
  if (search_path.split(':').some((folder) => folder !== '' && existsSync(join(folder, name)))) return name;
  const [modules] = /^.*\/node_modules(?=\/)/.exec(dirname(program)) ?? [];
  const by_npm = modules === undefined ? undefined : join(modules, '.bin', name);
  return by_npm !== undefined && existsSync(by_npm) ? relative(cwd, by_npm) : name;
}
