/** The end of a VM's console log. */
import { open } from 'node:fs/promises';
import type { ConsoleLogResult } from '../../agent-api/host-calls.ts';
import { errnoOf } from '../../lib/errors.ts';

export async function readConsole(log_path: string, max_bytes: number): Promise<ConsoleLogResult> {
  try {
    await using file = await open(log_path, 'r');
    const { size } = await file.stat();
    const length = Math.min(size, max_bytes);
    const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, size - length);
    // Invalid UTF-8 becomes U+FFFD, also a character cut in two at the beginning.
    return { text: buffer.subarray(0, bytesRead).toString('utf8') };
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return { text: '' };
    throw error;
  }
}
