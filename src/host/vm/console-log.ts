/**
 * Serves a guest's serial console: keeps the last megabyte or so in a log file, sends live output to watchers, and
 * passes their input to the guest. QEMU drops output while this process is away.
 *
 * Invariants:
 * - The log never grows past twice its kept size. A full disk loses log lines only.
 * - A watcher that does not keep up is disconnected; the guest and other watchers never wait for it.
 * - The output of a guest is read within a budget, so a guest that prints without end does no harm.
 */
import { appendFileSync, chmodSync, readFileSync, rmSync, statSync, writeFileSync } from 'node:fs';
import type { Duplex } from 'node:stream';
import { writeOrPause } from '../../shared/streams.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import { PacedReader, ReadBudget } from '../qemu/paced-reader.ts';

const KEEP_LINES = 16_384;
/** Output that arrives within this time has one line. */
const GRAIN_MS = 100;

export interface Arrival {
  readonly offset: number;
  readonly at_ms: number;
}

export const timesPathOf = (log_path: string) => `${log_path}.times`;

/**
 * When the bytes of a console log arrived: a file beside the log, with a line `<offset> <ms since 1970>` for each time after which
 * output came. Later bytes have that time until the next line.
 *
 * Invariants: a line is written before the bytes that it is about, so no byte has an earlier time than its own but by the grain. A file
 * that does not fit its log, because a crash came between changes of the two, is discarded: an unknown time is never guessed. The file
 * has at most twice {@link KEEP_LINES} lines.
 */
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

const KEEP_BYTES = 1024 * 1024;
const WATCHER_BEHIND_BYTES = 1024 * 1024;
const WATCHERS = 16;
/** Twenty times what a serial line of 115,200 baud carries. */
const PACE = { bytes_per_second: 256 * 1024, burst_bytes: 1024 * 1024 };

export class ConsoleLog {
  readonly #input: PacedReader;
  readonly #watchers = new Set<Duplex>();
  readonly #log_path: string;
  readonly #times: ConsoleTimes;
  #size: number;

  constructor(socket_path: string, log_path: string) {
    this.#log_path = log_path;
    this.#size = openLog(log_path);
    this.#times = new ConsoleTimes(log_path, this.#size);
    this.#input = new PacedReader(socket_path, new ReadBudget(PACE), (chunk) => this.#receive(chunk));
    const { socket } = this.#input;
    // A failing console must not end its VM.
    socket.on('error', () => socket.destroy());
    socket.on('close', () => this.#endWatchers());
    this.#input.expect(true);
  }

  /** Connects a watcher. It is destroyed when the console ends. */
  attach(watcher: Duplex): void {
    watcher.on('error', () => watcher.destroy());
    const { socket } = this.#input;
    if (socket.destroyed || this.#watchers.size >= WATCHERS) {
      watcher.destroy();
      return;
    }
    this.#watchers.add(watcher);
    watcher.on('close', () => this.#watchers.delete(watcher));
    watcher.on('end', () => watcher.destroy());
    // While the guest does not read, no input is taken.
    watcher.on('data', (typed: Buffer) => writeOrPause(watcher, socket, typed));
  }

  close(): void {
    this.#input.socket.destroy();
    this.#endWatchers();
  }

  #receive(chunk: Buffer): void {
    for (const each of this.#watchers) {
      if (each.writableLength > WATCHER_BEHIND_BYTES) each.destroy();
      else each.write(chunk);
    }
    try {
      this.#times.note(this.#size, Date.now());
      appendFileSync(this.#log_path, chunk, { mode: 0o600 });
      this.#size += chunk.length;
      if (this.#size <= 2 * KEEP_BYTES) return;
      const kept = readFileSync(this.#log_path).subarray(-KEEP_BYTES);
      writeFileSync(this.#log_path, kept, { mode: 0o600 });
      this.#times.drop(this.#size - kept.length);
      this.#size = kept.length;
    } catch {
      this.#size = sizeOf(this.#log_path);
    }
  }

  #endWatchers(): void {
    for (const each of this.#watchers) each.destroy();
  }
}

/** Creates the log if it can, and returns its size in bytes. A VM starts without a log too. */
function openLog(path: string): number {
  try {
    appendFileSync(path, '', { mode: 0o600 });
    chmodSync(path, 0o600);
  } catch {
    // Tried again at the next output.
  }
  return sizeOf(path);
}

function sizeOf(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.size ?? 0;
}

const TAIL_LINES = 3;
const TAIL_BYTES = 16 * 1024;

/** For an error's message: the last lines, or the lines from the last match of `from`. */
export function consoleTail(log_path: string, from?: RegExp): string {
  try {
    const lines = readFileSync(log_path)
      .subarray(-TAIL_BYTES)
      .toString('utf8')
      .split('\n')
      .map(untrustedText)
      .filter((line) => line !== '');
    const first = from ? lines.findLastIndex((line) => from.test(line)) : -1;
    const shown = first === -1 ? lines.slice(-TAIL_LINES) : lines.slice(first, first + TAIL_LINES);
    return untrustedText(shown.join(' | '));
  } catch {
    return '';
  }
}
