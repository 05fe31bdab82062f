/** The end of what a VM has printed on its serial console. */
import { open } from 'node:fs/promises';
import type { ConsoleLogResult } from '../../agent-api/host-calls.ts';
import { errnoOf } from '../../lib/errors.ts';

export async function readConsole(log_path: string, max_bytes: number): Promise<ConsoleLogResult> {
  try {
    await using file = await open(log_path, 'r');
    const { size } = await file.stat();
    const length = Math.min(size, max_bytes);
    const { buffer, bytesRead } = await file.read(Buffer.alloc(length), 0, length, size - length);
    // What is no UTF-8, a character cut in two at the beginning too, becomes U+FFFD.
    return { text: buffer.subarray(0, bytesRead).toString('utf8') };
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return { text: '' };
    throw error;
  }
}
