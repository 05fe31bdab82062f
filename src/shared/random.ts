import { randomFillSync } from 'node:crypto';

/** Drawn ahead: a system call for a few bytes costs as much as one for thousands. */
const drawn = Buffer.alloc(4096);
let drawn_at = drawn.length;

/**
 * Bytes for ids, each returned once; at most 4096, valid until the next call. Not for secrets: bytes drawn ahead lie in memory for a
 * while.
 */
export function drawRandom(bytes: number): Buffer {
  if (drawn_at + bytes > drawn.length) {
    randomFillSync(drawn);
    drawn_at = 0;
  }
  drawn_at += bytes;
  return drawn.subarray(drawn_at - bytes, drawn_at);
}
