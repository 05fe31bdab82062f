/** A log that records its lines for a test. */
import { pino } from 'pino';
import type { Log } from '../../src/shared/log.ts';

export function logLines(): { readonly log: Log; readonly lines: readonly string[] } {
  const lines: string[] = [];
  return { log: pino({ level: 'debug' }, { write: (line: string) => void lines.push(line) }), lines };
}
