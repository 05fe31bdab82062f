/** Durations as people type them: `30s`, `10m`, `24h`, `7d`. Each has a unit; only 0 needs none. For the command line and the console. */

const SECONDS = { s: 1, m: 60, h: 3_600, d: 86_400 } as const;
type Unit = keyof typeof SECONDS;

/** For help, and for errors. */
export const DURATION_EXAMPLES = '30s, 10m, 24h or 7d';

/** In seconds; null: not a duration. */
export function readDuration(text: string): number | null {
  if (text === '0') return 0;
  const [, number, unit] = /^(\d{1,9})([smhd])$/.exec(text) ?? [];
  return number === undefined ? null : Number(number) * SECONDS[unit as Unit];
}

/** Seconds as {@link readDuration} reads them, in the largest unit that leaves no rest: 900 is `15m`. */
export function durationText(seconds: number): string {
  const unit =
    (['d', 'h', 'm'] as const).find((each) => seconds !== 0 && seconds % SECONDS[each] === 0) ?? 's';
  return `${seconds / SECONDS[unit]}${unit}`;
}
