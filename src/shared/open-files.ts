/** This process's open files as a budget. At its limit it could neither accept a connection nor open one to its database. */
import { readFileSync } from 'node:fs';

/** For the database, internal listeners, the listening sockets, files and programs. */
const RESERVE = 4_096;
const RESERVED_SHARE = 0.25;

/** Node raises it to the highest that the system allows. */
export function openFilesLimit(): number {
  const found = /^Max open files +([0-9]+)/m.exec(readFileSync('/proc/self/limits', 'latin1'));
  return found ? Number(found[1]) : Number.POSITIVE_INFINITY;
}

/** How many of them connections from outside may take, with what each opens. */
export function filesForConnections(open_files: number): number {
  return open_files - Math.min(RESERVE, Math.ceil(open_files * RESERVED_SHARE));
}
