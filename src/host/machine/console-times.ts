/**
 * When the bytes of a console log arrived: a file beside the log, with a line `<offset> <ms since 1970>` for each time after which
 * output came. Later bytes have that time until the next line.
 *
 * Invariants: a line is written before the bytes that it is about, so no byte has an earlier time than its own but by the grain. A file
 * that does not fit its log, because a crash came between changes of the two, is discarded: an unknown time is never guessed. The file
 * has at most twice {@link KEEP_LINES} lines.
 */
import { appendFileSync, readFileSync, rmSync, writeFileSync } from 'node:fs';

const KEEP_LINES = 16_384;
/** Output that arrives within this time has one line. */
const GRAIN_MS = 100;

export interface Arrival {
  readonly offset: number;
  readonly at_ms: number;
}

export const timesPathOf = (log_path: string) => `${log_path}.times`;

export class ConsoleTimes {
  readonly #path: string;
  #lines: number;
  #last_ms = Number.NEGATIVE_INFINITY;

  constructor(log_path: string, log_bytes: number) {
    this.#path = timesPathOf(log_path);
    const known = readArrivals(log_path);
    this.#lines = known.length;
    if ((known.at(-1)?.offset ?? 0) > log_bytes) this.clear();
  }

  /** Bytes are about to be appended at `offset`. */
  note(offset: number, now_ms: number): void {
    // A clock that was set back counts too.
    if (now_ms >= this.#last_ms && now_ms - this.#last_ms < GRAIN_MS) return;
    appendFileSync(this.#path, `${offset} ${now_ms}\n`, { mode: 0o600 });
    this.#last_ms = now_ms;
    this.#lines += 1;
    if (this.#lines > 2 * KEEP_LINES) this.#write(parsed(this.#path).slice(-KEEP_LINES));
  }

  /** The log's first bytes are gone. */
  drop(bytes: number): void {
    try {
      const moved = parsed(this.#path).map(({ offset, at_ms }) => ({ offset: offset - bytes, at_ms }));
      const first = moved.findLastIndex(({ offset }) => offset <= 0);
      const kept = moved.slice(Math.max(0, first));
      this.#write(kept.map(({ offset, at_ms }) => ({ offset: Math.max(0, offset), at_ms })));
    } catch {
      this.clear();
    }
  }

  clear(): void {
    rmSync(this.#path, { force: true });
    this.#lines = 0;
    this.#last_ms = Number.NEGATIVE_INFINITY;
  }

  #write(arrivals: readonly Arrival[]): void {
    writeFileSync(this.#path, arrivals.map(({ offset, at_ms }) => `${offset} ${at_ms}\n`).join(''), {
      mode: 0o600,
    });
    this.#lines = arrivals.length;
  }
}

/** In the order of the log; [] when none is known. */
export function readArrivals(log_path: string): Arrival[] {
  try {
    return parsed(timesPathOf(log_path));
  } catch {
    return [];
  }
}

/** A line that a full disk has cut off is left out. */
function parsed(path: string): Arrival[] {
  return readFileSync(path, 'latin1')
    .split('\n')
    .flatMap((line) => {
      const [, offset, at_ms] = /^(\d{1,12}) (\d{1,15})$/.exec(line) ?? [];
      return offset === undefined ? [] : [{ offset: Number(offset), at_ms: Number(at_ms) }];
    });
}
