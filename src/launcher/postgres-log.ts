/** Explains PostgreSQL's log to an operator. */
import { lastLines } from './run-command.ts';

/** The relevant lines, joined into one, with the cause if it is known. */
export function explainLog(log: string): string {
  const relevant = log.split('\n').filter((line) => /\b(FATAL|PANIC|HINT|DETAIL):/.test(line));
  const summary = lastLines(
    (relevant.length > 0 ? relevant.join('\n') : log).replace(/^\S+ \S+ \S+ \[\d+\] /gm, ''),
    4,
  );
  if (/No space left on device|Disk quota exceeded/i.test(summary)) return `the disk is full: ${summary}`;
  if (/Permission denied|has wrong ownership|has invalid permissions/i.test(summary)) {
    return `its user has no access to its files: ${summary}`;
  }
  if (/not compatible with this version|incompatible with server/i.test(summary)) {
    return `the data folder is of another PostgreSQL version: ${summary}`;
  }
  return summary;
}
