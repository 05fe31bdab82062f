/** Whether a process lives, for those that are not our children. */
import { readFileSync } from 'node:fs';
import { errnoOf } from '../lib/errors.ts';

/** False for a zombie, which nobody may ever reap in a container. */
export function isAlive(pid: number): boolean {
  try {
    // The state follows the program's name, which stands in parentheses and may hold any character.
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
    return !/^ [ZX]/.test(stat.slice(stat.lastIndexOf(')') + 1));
  } catch (error) {
    if (['ENOENT', 'ESRCH'].includes(errnoOf(error) ?? '')) return false;
    throw error;
  }
}
