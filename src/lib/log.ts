import { type Logger, pino } from 'pino';

export type Log = Logger;

/** Fields that must never reach a log, in what is logged, in what it holds, and in what that holds. */
const REDACTED: ReadonlySet<string> = new Set([
  'authorization',
  'cookie',
  'password',
  'new_password',
  'current_password',
  'token',
  'session_token',
  'key',
  'secret',
]);
const DEPTH = 3;
const CENSOR = '[redacted]';

/**
 * `value` without them: itself where it has none, which is nearly always. pino's own `redact` takes ten times a line's
 * time.
 */
function redacted<T>(value: T, depth = DEPTH): T {
  if (depth === 0 || !isPlain(value)) return value;
  let copy: object | undefined;
  for (const [name, held] of Object.entries(value)) {
    const shown = REDACTED.has(name) && held !== undefined ? CENSOR : redacted(held, depth - 1);
    if (shown === held) continue;
    copy ??= Array.isArray(value) ? [...(value as unknown[])] : { ...value };
    Object.assign(copy, { [name]: shown });
  }
  return (copy as T | undefined) ?? value;
}

/** Not what says itself how it is written, as times and bytes do, and no error: those are looked at once they are written. */
function isPlain(value: unknown): value is object {
  return typeof value === 'object' && value !== null && !('toJSON' in value) && !(value instanceof Error);
}

export interface LogDestination {
  write(line: string): void;
}

/** JSON lines, on stderr unless they go elsewhere; stdout stays for what a person started the program to read. */
export function createLog(role: string, level: string, destination?: LogDestination): Log {
  return pino(
    {
      level,
      base: { role, pid: process.pid },
      formatters: { level: (label) => ({ level: label }), log: redacted },
      serializers: { err: (error: Error) => redacted(pino.stdSerializers.err(error)) },
      timestamp: pino.stdTimeFunctions.isoTime,
    },
    destination ?? pino.destination({ dest: 2, sync: true }),
  );
}
