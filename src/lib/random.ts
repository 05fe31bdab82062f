import { randomFillSync } from 'node:crypto';

/** Drawn ahead: asking the system for a few bytes costs as much as asking for thousands. */
const drawn = Buffer.alloc(4096);
let drawn_at = drawn.length;

/**
 * Bytes for ids, each given out once; at most 4096, and the caller's until the next call only. Secrets are not made of
 * these, for the next ones lie in memory for a while.
 */
export function drawRandom(bytes: number): Buffer {
  if (drawn_at + bytes > drawn.length) {
    randomFillSync(drawn);
    drawn_at = 0;
  }
  drawn_at += bytes;
  return drawn.subarray(drawn_at - bytes, drawn_at);
}
