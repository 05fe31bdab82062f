/** Whether a process that is not our child lives. */
import { readFileSync } from 'node:fs';
import { errnoOf } from '../shared/errors.ts';

/** False for a zombie: in a container nothing may ever reap it. */
export function isAlive(pid: number): boolean {
  try {
    // The state follows the program's name, which is in parentheses and may contain any character.
    const stat = readFileSync(`/proc/${pid}/stat`, 'latin1');
    return !/^ [ZX]/.test(stat.slice(stat.lastIndexOf(')') + 1));
  } catch (error) {
    if (['ENOENT', 'ESRCH'].includes(errnoOf(error) ?? '')) return false;
    throw error;
  }
}
