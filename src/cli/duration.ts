/** Durations and times as options of commands. */
import { DURATION_EXAMPLES, readDuration } from '../../client/src/words.ts';
import { UsageError } from './command-error.ts';

/** @returns seconds @throws UsageError */
export function parseDuration(text: string): number {
  const seconds = readDuration(text);
  if (seconds !== null) return seconds;
  throw new UsageError(
    lacksUnit(text)
      ? withUnits(text)
      : `a duration is a number with its unit, such as ${DURATION_EXAMPLES}, not ${text}`,
  );
}

const lacksUnit = (text: string) => /^\d{1,9}$/.test(text);
const withUnits = (text: string) => `${text} has no unit: write ${text}s, ${text}m, ${text}h or ${text}d`;

/** The value of an option, in seconds. @throws UsageError that names the option */
export function durationOption(name: string, text: string | undefined, or_off = false): number | undefined {
  if (text === undefined) return undefined;
  try {
    return parseDuration(text);
  } catch (error) {
    if (!(error instanceof UsageError)) throw error;
    throw new UsageError(
      lacksUnit(text)
        ? `--${name}: ${withUnits(text)}`
        : `--${name} takes a duration such as ${DURATION_EXAMPLES}, ${or_off ? 'or off, ' : ''}not ${text}`,
    );
  }
}

/** The same, or null for `off`. */
export function durationOrOff(name: string, text: string | undefined): number | null | undefined {
  return text === 'off' ? null : durationOption(name, text, true);
}

/**
 * The value of an option such as --since: a duration before now, a date, or a time.
 * @returns RFC 3339 @throws UsageError that names the option
 */
export function timeOption(name: string, text: string | undefined, now_ms = Date.now()): string | undefined {
  if (text === undefined) return undefined;
  if (/^\d{1,9}[smhd]$/.test(text)) return new Date(now_ms - parseDuration(text) * 1_000).toISOString();
  const time_ms = /^\d{4}-\d\d-\d\d/.test(text) ? Date.parse(text) : Number.NaN;
  if (!Number.isNaN(time_ms)) return new Date(time_ms).toISOString();
  if (lacksUnit(text)) throw new UsageError(`--${name}: ${withUnits(text)}`);
  throw new UsageError(
    `--${name} takes a duration before now such as 10m, 24h or 7d, or a time such as 2026-11-25T09:12:00Z, not ${text}`,
  );
}
