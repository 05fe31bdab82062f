/** Finds bytes in files and in the memory of processes. */
import { closeSync, openSync, readdirSync, readFileSync, readSync } from 'node:fs';
import { join } from 'node:path';

const PIECE_BYTES = 4 * 1024 * 1024;

/** Whether each of `needles` is in the range; a needle across two pieces counts. */
function inRange(fd: number, from: number, bytes: number, needles: readonly string[]): boolean[] {
  const wanted = needles.map((each) => Buffer.from(each));
  const overlap = Math.max(...wanted.map((each) => each.length)) - 1;
  const piece = Buffer.alloc(PIECE_BYTES + overlap);
  const found = wanted.map(() => false);
  let kept = 0;
  for (let at = 0; at < bytes; ) {
    let got: number;
    try {
      got = readSync(fd, piece, kept, Math.min(PIECE_BYTES, bytes - at), from + at);
    } catch {
      // Pages of devices cannot be read.
      kept = 0;
      at += PIECE_BYTES;
      continue;
    }
    if (got === 0) break;
    at += got;
    const held = piece.subarray(0, kept + got);
    for (const [i, each] of wanted.entries()) found[i] ||= held.includes(each);
    kept = Math.min(overlap, held.length);
    held.copyWithin(0, held.length - kept);
  }
  return found;
}

/** For each of `needles`, the files of the folder that contain it. */
export function filesWith(folder: string, needles: readonly string[]): string[][] {
  const found: string[][] = needles.map(() => []);
  for (const entry of readdirSync(folder, { recursive: true, withFileTypes: true })) {
    if (!entry.isFile()) continue;
    const path = join(entry.parentPath, entry.name);
    let fd: number;
    try {
      fd = openSync(path, 'r');
    } catch {
      // Removed meanwhile.
      continue;
    }
    const hits = inRange(fd, 0, Number.MAX_SAFE_INTEGER, needles);
    closeSync(fd);
    for (const [i, hit] of hits.entries()) if (hit) found[i]?.push(path);
  }
  return found;
}

/** Whether each of `needles` is in the memory of a process. */
export function inMemory(pid: number, needles: readonly string[]): boolean[] {
  const found = needles.map(() => false);
  const fd = openSync(`/proc/${pid}/mem`, 'r');
  for (const line of readFileSync(`/proc/${pid}/maps`, 'latin1').split('\n')) {
    const [, from, to] = /^([0-9a-f]+)-([0-9a-f]+) r/.exec(line) ?? [];
    // The kernel's own page above is no memory of the process.
    if (from === undefined || to === undefined || from.length > 12) continue;
    const start = Number.parseInt(from, 16);
    for (const [i, hit] of inRange(fd, start, Number.parseInt(to, 16) - start, needles).entries()) {
      found[i] ||= hit;
    }
  }
  closeSync(fd);
  return found;
}
