/** How the command line is typed on this machine, for what a start says to type next. */
import { existsSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';

/**
 * By its name where a shell finds it, from a checkout's folder, or where npm has put it.
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
