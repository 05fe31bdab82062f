/**
 * Releases the memory of large buffers by hand. V8 leaves some 90 MiB of dropped buffers per thread before it collects them
 * (docs/adr/0028-memory-of-the-agent.md), which is half of the agent's bound.
 */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

/** Smaller buffers are left to V8. */
const SMALL_BYTES = 16 * 1024;
const GARBAGE_MAX_BYTES = 4 * 1024 * 1024;

/**
 * Frees the whole buffer behind `bytes`; all views of it become empty. The caller must own the whole buffer, and no system call may
 * be reading or writing it.
 */
export function release({ buffer }: Uint8Array): void {
  if (!(buffer instanceof ArrayBuffer) || buffer.byteLength <= SMALL_BYTES) return;
  try {
    buffer.transfer(0);
  } catch {
    // A slab that Node shares between buffers cannot be transferred.
  }
}

let garbage_bytes = 0;
let collect: ((options: { type: 'minor' }) => void) | undefined;

/** Notes dropped buffers that cannot be released by hand. Every 4 MiB it collects the young generation, which takes half a millisecond. */
export function noteGarbage(bytes: number): void {
  garbage_bytes += bytes;
  if (garbage_bytes < GARBAGE_MAX_BYTES) return;
  garbage_bytes = 0;
  if (!collect) {
    setFlagsFromString('--expose-gc');
    collect = runInNewContext('gc') as typeof collect;
  }
  collect?.({ type: 'minor' });
}
