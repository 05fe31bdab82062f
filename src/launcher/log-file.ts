/**
 * Chooses where a process logs to. If stderr is a terminal, JSON lines go to a file in the data folder, and only errors
 * appear on the terminal, as sentences. Otherwise (a journal, a container, a pipe) JSON lines go to stderr. All roles
 * append to the same file, and the launcher alone rotates it.
 */
import { closeSync, openSync, writeSync } from 'node:fs';
import { copyFile, stat, truncate } from 'node:fs/promises';
import type { LogDestination } from '../shared/log.ts';
import { pause } from '../shared/retry.ts';

const MOST_BYTES = 32 * 1024 * 1024;
const CHECK_EVERY_MS = 60_000;
const ERROR_LINE = /^\{"level":"(error|fatal)"/;

/** Undefined: stderr. The first line creates the file. */
export function logDestination(
  path: string,
  on_terminal = process.stderr.isTTY === true,
  tell: (text: string) => void = (text) => void process.stderr.write(text),
): LogDestination | undefined {
  if (!on_terminal) return undefined;
  return {
    write: (line) => {
      if (!append(path, line)) tell(line);
      else if (ERROR_LINE.test(line)) tell(forPeople(line));
    },
  };
}

/** Opens the file for each line, which works after a rotation too. False when the file cannot be written. */
function append(path: string, line: string): boolean {
  try {
    const fd = openSync(path, 'a', 0o600);
    try {
      writeSync(fd, line);
    } finally {
      closeSync(fd);
    }
    return true;
  } catch {
    return false;
  }
}

function forPeople(line: string): string {
  const { role, msg, reason, why, err } = JSON.parse(line) as Readonly<Record<string, unknown>>;
  const cause = reason ?? why ?? (err as { message?: unknown } | undefined)?.message;
  return `berth: ${role}: ${msg}${typeof cause === 'string' ? ` (${cause.split('\n')[0]})` : ''}\n`;
}

/** Rotates the file to `PATH.1` at its bound, until `ended`. Lines written during a rotation may be lost. */
export async function boundLogFile(path: string, ended: AbortSignal): Promise<void> {
  do {
    const size_bytes = await stat(path).then(
      ({ size }) => size,
      () => 0,
    );
    if (size_bytes <= MOST_BYTES) continue;
    await copyFile(path, `${path}.1`).catch(() => undefined);
    await truncate(path).catch(() => undefined);
  } while (await pause(CHECK_EVERY_MS, ended));
}
