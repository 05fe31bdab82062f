/** What PostgreSQL's own words mean to who runs Berth. */
import { lastLines } from './run-command.ts';

/** The lines of a log that say why, in one line, with what to do where that is known. */
export function explainLog(log: string): string {
  const telling = log.split('\n').filter((line) => /\b(FATAL|PANIC|HINT|DETAIL):/.test(line));
  const said = lastLines(
    (telling.length > 0 ? telling.join('\n') : log).replace(/^\S+ \S+ \S+ \[\d+\] /gm, ''),
    4,
  );
  if (/No space left on device|Disk quota exceeded/i.test(said)) return `the disk is full: ${said}`;
  if (/Permission denied|has wrong ownership|has invalid permissions/i.test(said)) {
    return `its user may not use its files: ${said}`;
  }
  if (/not compatible with this version|incompatible with server/i.test(said)) {
    return `the data folder is of another PostgreSQL version: ${said}`;
  }
  return said;
}
