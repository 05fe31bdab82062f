/** Durations as people type them: `30s`, `10m`, `24h`, `7d`. Each has a unit; only 0 needs none. */
import { UsageError } from './command-error.ts';

const SECONDS = { s: 1, m: 60, h: 3_600, d: 86_400 } as const;
type Unit = keyof typeof SECONDS;

/** For the help, and for errors. */
export const DURATION_EXAMPLES = '30s, 10m, 24h or 7d';

/** @returns seconds @throws UsageError */
export function parseDuration(text: string): number {
  if (text === '0') return 0;
  const [, number, unit] = /^(\d{1,9})([smhd])$/.exec(text) ?? [];
  if (number !== undefined) return Number(number) * SECONDS[unit as Unit];
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

/** Seconds as `parseDuration` reads them, in the largest unit that leaves no rest: 900 is `15m`. */
export function durationText(seconds: number): string {
  const unit =
    (['d', 'h', 'm'] as const).find((each) => seconds !== 0 && seconds % SECONDS[each] === 0) ?? 's';
  return `${seconds / SECONDS[unit]}${unit}`;
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
