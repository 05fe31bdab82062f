/**
 * A guest's serial console. What it prints is kept: the last megabyte or so, in a file that never grows past twice
 * that; while this process is away QEMU drops it. Those who watch see it too, and what they type goes to the guest.
 * Invariants: a watcher that does not keep up is cut off; the guest and the others never wait for it. What cannot be kept, for
 * want of room say, is left out; who watches sees it all the same.
 */
import { appendFileSync, chmodSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';

const KEEP_BYTES = 1024 * 1024;
const WATCHER_BEHIND_BYTES = 1024 * 1024;
const WATCHERS = 16;

export class ConsoleLog {
  readonly #socket: Socket;
  readonly #watchers = new Set<Duplex>();

  constructor(socket_path: string, log_path: string) {
    let size = openLog(log_path);
    this.#socket = connect({ path: socket_path });
    // A console that cannot be kept is not worth a VM.
    this.#socket.on('error', () => this.#socket.destroy());
    this.#socket.on('close', () => this.#endWatchers());
    this.#socket.on('data', (chunk) => {
      for (const each of this.#watchers) {
        if (each.writableLength > WATCHER_BEHIND_BYTES) each.destroy();
        else each.write(chunk);
      }
      try {
        appendFileSync(log_path, chunk, { mode: 0o600 });
        size += chunk.length;
        if (size <= 2 * KEEP_BYTES) return;
        const kept = readFileSync(log_path).subarray(-KEEP_BYTES);
        writeFileSync(log_path, kept, { mode: 0o600 });
        size = kept.length;
      } catch {
        size = sizeOf(log_path);
      }
    });
  }

  /** Until the watcher goes or the console ends, when it is destroyed. */
  attach(watcher: Duplex): void {
    watcher.on('error', () => watcher.destroy());
    if (this.#socket.destroyed || this.#watchers.size >= WATCHERS) {
      watcher.destroy();
      return;
    }
    this.#watchers.add(watcher);
    watcher.on('close', () => this.#watchers.delete(watcher));
    watcher.on('end', () => watcher.destroy());
    watcher.on('data', (typed: Buffer) => {
      if (this.#socket.write(typed)) return;
      // A guest that reads nothing: its line takes no more.
      watcher.pause();
      this.#socket.once('drain', () => watcher.resume());
    });
  }

  close(): void {
    this.#socket.destroy();
    this.#endWatchers();
  }

  #endWatchers(): void {
    for (const each of this.#watchers) each.destroy();
  }
}

/** Its size, bytes; made where there is none, if that can be: a VM starts without it. */
function openLog(path: string): number {
  try {
    appendFileSync(path, '', { mode: 0o600 });
    chmodSync(path, 0o600);
  } catch {
    // Tried again with what the guest prints.
  }
  return sizeOf(path);
}

function sizeOf(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.size ?? 0;
}

const TAIL_LINES = 3;
const TAIL_BYTES = 16 * 1024;

/** The last lines that the guest printed, or those from its last that matches `from`, for an error's message. */
export function consoleTail(log_path: string, from?: RegExp): string {
  try {
    const lines = readFileSync(log_path)
      .subarray(-TAIL_BYTES)
      .toString('latin1')
      .split('\n')
      .map((line) => line.replace(/[^\x20-\x7e]/g, '').trim())
      .filter((line) => line !== '');
    const first = from ? lines.findLastIndex((line) => from.test(line)) : -1;
    const shown = first === -1 ? lines.slice(-TAIL_LINES) : lines.slice(first, first + TAIL_LINES);
    return shown.join(' | ');
  } catch {
    return '';
  }
}
