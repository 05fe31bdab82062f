/**
 * A guest's serial console: the last megabyte or so in a log file, live output to watchers, and their input to the guest. QEMU
 * drops output while this process is away.
 *
 * Invariants: the log never grows past twice its kept size. A watcher that does not keep up is disconnected; guest and other
 * watchers never wait for it. A guest that prints without end is read within a budget. A full disk loses log lines only.
 */
import { appendFileSync, chmodSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import type { Duplex } from 'node:stream';
import { untrustedText } from '../../shared/untrusted-text.ts';
import { writeOrPause } from '../../shared/write-or-pause.ts';
import { PacedReader, ReadBudget } from '../qmp/paced-reader.ts';
import { ConsoleTimes } from './console-times.ts';

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
