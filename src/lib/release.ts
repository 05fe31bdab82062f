/**
 * Memory of large buffers, given back by hand. V8 leaves some 90 MiB of dropped buffers in each thread before it looks for
 * them (docs/adr/0028-memory-of-the-agent.md), which is half of what the agent may hold.
 */
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';

/** Not worth the while. */
const SMALL_BYTES = 16 * 1024;
const GARBAGE_MAX_BYTES = 4 * 1024 * 1024;

/**
 * Frees what lies behind `bytes`, all of it: afterwards these and all other views of that memory have no bytes. Only for
 * who owns the whole buffer, and never while the system still reads from it or writes into it.
 */
export function release({ buffer }: Uint8Array): void {
  if (!(buffer instanceof ArrayBuffer) || buffer.byteLength <= SMALL_BYTES) return;
  try {
    buffer.transfer(0);
  } catch {
    // A slab of Node's, which many share: it refuses.
  }
}

let garbage_bytes = 0;
let collect: ((options: { type: 'minor' }) => void) | undefined;

/** Says that buffers of so many bytes were dropped that nobody can release by hand. Each 4 MiB, half a millisecond for the young. */
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
