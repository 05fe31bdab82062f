/** Keeps a process's memory, which has secrets, out of core dumps. */
import { writeFileSync } from 'node:fs';

/**
 * A dump of this process and of those that it starts has no memory (core(5), coredump_filter). A limit of size 0 would not hold where
 * the kernel pipes dumps to a program. Before root is given up: afterwards the file cannot be written.
 */
export function withoutMemoryInDumps(): void {
  try {
    writeFileSync('/proc/self/coredump_filter', '0');
  } catch {
    // A kernel without core dumps.
  }
}
