/**
 * Keeps what a guest prints on its serial console: the last megabyte or so, in a file that never grows past twice
 * that. While this process is away QEMU drops what is printed.
 */
import { appendFileSync, chmodSync, readFileSync, statSync, writeFileSync } from 'node:fs';
import { connect, type Socket } from 'node:net';

const KEEP_BYTES = 1024 * 1024;

export class ConsoleLog {
  readonly #socket: Socket;

  constructor(socket_path: string, log_path: string) {
    appendFileSync(log_path, '', { mode: 0o600 });
    chmodSync(log_path, 0o600);
    let size = statSync(log_path).size;
    this.#socket = connect({ path: socket_path });
    // A console that cannot be kept is not worth a VM.
    this.#socket.on('error', () => this.#socket.destroy());
    this.#socket.on('data', (chunk) => {
      try {
        appendFileSync(log_path, chunk);
        size += chunk.length;
        if (size <= 2 * KEEP_BYTES) return;
        const kept = readFileSync(log_path).subarray(-KEEP_BYTES);
        writeFileSync(log_path, kept, { mode: 0o600 });
        size = kept.length;
      } catch {
        this.#socket.destroy();
      }
    });
  }

  close(): void {
    this.#socket.destroy();
  }
}

/** The last lines that the guest printed, for an error's message. */
export function consoleTail(log_path: string, lines = 3): string {
  try {
    const text = readFileSync(log_path).subarray(-4_096).toString('latin1');
    return text
      .split('\n')
      .map((line) => line.replace(/[^\x20-\x7e]/g, '').trim())
      .filter((line) => line !== '')
      .slice(-lines)
      .join(' | ');
  } catch {
    return '';
  }
}
