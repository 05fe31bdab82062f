import { type Logger, pino } from 'pino';

export type Log = Logger;

/** Fields that must never reach a log, at any depth the program logs. */
const REDACTED = [
  'authorization',
  'cookie',
  'password',
  'new_password',
  'current_password',
  'token',
  'session_token',
  'key',
  'secret',
];

export interface LogDestination {
  write(line: string): void;
}

/** JSON lines, on stderr unless they go elsewhere; stdout stays for what a person started the program to read. */
export function createLog(role: string, level: string, destination?: LogDestination): Log {
  return pino(
    {
      level,
      base: { role, pid: process.pid },
      redact: { paths: REDACTED.flatMap((name) => [name, `*.${name}`, `*.*.${name}`]), censor: '[redacted]' },
      formatters: { level: (label) => ({ level: label }) },
      timestamp: pino.stdTimeFunctions.isoTime,
    },
    destination ?? pino.destination({ dest: 2, sync: true }),
  );
}
