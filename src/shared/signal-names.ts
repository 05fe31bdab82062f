/** Linux's signals on x86_64, by name and by number. */
import { constants } from 'node:os';

const NUMBERS: Readonly<Record<string, number>> = constants.signals;
const NAMES = new Map(
  // SIGIOT and SIGPOLL are second names.
  Object.entries(NUMBERS).flatMap(([name, number]) =>
    name === 'SIGIOT' || name === 'SIGPOLL' ? [] : [[number, name] as const],
  ),
);
const RTMIN = 34;

/** The names that a signal may be sent by. */
export const SIGNAL_NAMES: readonly string[] = [...NAMES.values()].sort();

export function signalName(number: number): string {
  return NAMES.get(number) ?? (number >= RTMIN ? `SIGRTMIN+${number - RTMIN}` : `SIG${number}`);
}

export function signalNumber(name: string): number | undefined {
  return Object.hasOwn(NUMBERS, name) ? NUMBERS[name] : undefined;
}
