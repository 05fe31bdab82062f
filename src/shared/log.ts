/**
 * Makes the log of a process: JSON lines, to stderr or a given destination, with the values of secret fields censored.
 */
import { type Bindings, type ChildLoggerOptions, type Logger, pino } from 'pino';
import { traceFields } from './tracing.ts';

export type Log = Logger;

/** Fields that must never reach a log, down to the third level of a logged object. */
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
 * `value` with those fields censored; `value` itself if it has none, which is the common case. pino's own `redact` takes ten times
 * as long.
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

/** Objects with `toJSON` (dates, buffers) and errors are serialised first, and censored then. */
function isPlain(value: unknown): value is object {
  return typeof value === 'object' && value !== null && !('toJSON' in value) && !(value instanceof Error);
}

const NAMES_REQUEST = Symbol('its lines name their request');

/** A logger whose `bindings` have the id of a request. */
export function requestLog(log: Log, bindings: Bindings, options: ChildLoggerOptions): Log {
  return Object.assign(log.child(bindings, options), { [NAMES_REQUEST]: true });
}

/** Of the present work; the request's id not twice. */
function mixin(_fields: object, _level: number, log: object): object {
  const { request_id, ...ids } = traceFields();
  return request_id === undefined || NAMES_REQUEST in log ? ids : { request_id, ...ids };
}

export interface LogDestination {
  write(line: string): void;
}

/** JSON lines, on stderr by default. stdout is left to the program's output. */
export function createLog(role: string, level: string, destination?: LogDestination): Log {
  return pino(
    {
      level,
      base: { role, pid: process.pid },
      formatters: { level: (label) => ({ level: label }), log: redacted },
      mixin,
      serializers: { err: (error: Error) => redacted(pino.stdSerializers.err(error)) },
      timestamp: pino.stdTimeFunctions.isoTime,
    },
    destination ?? pino.destination({ dest: 2, sync: true }),
  );
}
