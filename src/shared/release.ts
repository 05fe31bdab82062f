/**
 * Releases the memory of large buffers by hand. V8 leaves some 90 MiB of dropped buffers per thread before it collects them
 * (docs/adr/0020-memory-of-the-agent.md), which is half of the agent's bound.
 */

/** Smaller buffers are left to V8. */
const SMALL_BYTES = 16 * 1024;

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
