/** Amounts of use for people. The command line and the console show the same. */

const MINUTE_S = 60;
const HOUR_S = 3_600;
/** From here on minutes tell nothing. */
const LONG_H = 100;
/** Units, and how many of them are a GiB. */
const LEAST_SIZE = ['KiB', 1024 ** 2] as const;
const SIZES = [['GiB', 1], ['MiB', 1024], LEAST_SIZE] as const;

/** `45 s`, `7 min 18 s`, `29 h 30 min`, `720 h`. Hours add up to no days, because use is counted in hours. */
export function hoursText(seconds: number): string {
  const whole = Math.round(seconds);
  if (whole < MINUTE_S) return `${whole} s`;
  if (whole < HOUR_S) return joined(Math.floor(whole / MINUTE_S), 'min', whole % MINUTE_S, 's');
  const minutes = Math.round(seconds / MINUTE_S);
  const hours = Math.floor(minutes / 60);
  return hours < LONG_H ? joined(hours, 'h', minutes % 60, 'min') : `${Math.round(minutes / 60)} h`;
}

/** Two digits are enough. Less than 0.01 GiB h is in MiB or KiB. */
export function gibHoursText(gib_hours: number): string {
  if (gib_hours === 0) return '0 GiB h';
  const [unit, per_gib] = SIZES.find(([, per]) => gib_hours * per >= 0.01) ?? LEAST_SIZE;
  const amount = gib_hours * per_gib;
  const shown = amount < 0.1 ? Number(amount.toPrecision(2)) : amount.toFixed(amount < 10 ? 2 : 0);
  return `${shown} ${unit} h`;
}

function joined(large: number, large_unit: string, small: number, small_unit: string): string {
  return small === 0 ? `${large} ${large_unit}` : `${large} ${large_unit} ${small} ${small_unit}`;
}
