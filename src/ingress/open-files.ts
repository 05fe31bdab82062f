/** This process's limit of open files. Node raises it to the highest that the system allows. */
import { readFileSync } from 'node:fs';

export function openFilesLimit(): number {
  const found = /^Max open files +([0-9]+)/m.exec(readFileSync('/proc/self/limits', 'latin1'));
  return found ? Number(found[1]) : Number.POSITIVE_INFINITY;
}
