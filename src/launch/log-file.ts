/**
 * Where the log goes. On a terminal sits a person: there the JSON lines go to a file of the data folder, and only what
 * went wrong is told, in words. Anywhere else (a journal, a container, a pipe) they go to stderr.
 * Every role appends to the same file; the launcher alone keeps it bounded.
 */
import { closeSync, openSync, writeSync } from 'node:fs';
import { copyFile, stat, truncate } from 'node:fs/promises';
import { pause } from '../lib/backoff.ts';
import type { LogDestination } from '../lib/log.ts';

const MOST_BYTES = 32 * 1024 * 1024;
const LOOKED_AT_EVERY_MS = 60_000;
const GRAVE = /^\{"level":"(error|fatal)"/;

/** Undefined: stderr. The file is made at the first line, when the data folder is there. */
export function logDestination(
  path: string,
  on_terminal = process.stderr.isTTY === true,
  tell: (text: string) => void = (text) => void process.stderr.write(text),
): LogDestination | undefined {
  if (!on_terminal) return undefined;
  return {
    write: (line) => {
      if (!append(path, line)) tell(line);
      else if (GRAVE.test(line)) tell(forPeople(line));
    },
  };
}

/** Opened for each line: rare at rest, and right whatever becomes of the file. False where it cannot be written. */
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

/** Until `ended`. What is over the bound becomes `PATH.1`; lines that are written just then may be lost. */
export async function boundLogFile(path: string, ended: AbortSignal): Promise<void> {
  do {
    const size_bytes = await stat(path).then(
      ({ size }) => size,
      () => 0,
    );
    if (size_bytes <= MOST_BYTES) continue;
    await copyFile(path, `${path}.1`).catch(() => undefined);
    await truncate(path).catch(() => undefined);
  } while (await pause(LOOKED_AT_EVERY_MS, ended));
}
