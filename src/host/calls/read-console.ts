/** The end of a VM's console log. */
import { readFileSync } from 'node:fs';
import { open } from 'node:fs/promises';
import type { ConsoleLogResult } from '../../protocol/host-calls.ts';
import { rfc3339 } from '../../shared/clock.ts';
import { errnoOf } from '../../shared/errors.ts';
import { type Arrival, readArrivals } from '../vm/console-log.ts';

const LINE_FEED = 0x0a;
/** For a line of a time that is not known. */
const NO_TIME = '-';

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

/** The same with the time at which each line began to arrive, in front of it. At most `max_bytes` with the times. */
export function readTimedConsole(log_path: string, max_bytes: number): ConsoleLogResult {
  try {
    // Both at once: nothing is appended or dropped in between.
    return { text: timedText(readFileSync(log_path), readArrivals(log_path), max_bytes) };
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return { text: '' };
    throw error;
  }
}

function timedText(log: Buffer, arrivals: readonly Arrival[], max_bytes: number): string {
  const lines: string[] = [];
  let left_bytes = max_bytes;
  let nth = arrivals.length - 1;
  for (let end = log.length; end > 0 && left_bytes > 0; ) {
    // A line feed belongs to the line that it ends.
    const begin = end === 1 ? 0 : log.lastIndexOf(LINE_FEED, end - 2) + 1;
    while (nth >= 0 && (arrivals[nth]?.offset ?? 0) > begin) nth -= 1;
    const arrival = arrivals[nth];
    const time = arrival ? rfc3339(new Date(arrival.at_ms)) : NO_TIME;
    const bytes = end - begin + time.length + 1;
    // A line that is longer than the limit is cut at its beginning.
    if (bytes > left_bytes && lines.length > 0) break;
    const shown = log.subarray(Math.max(begin, end - left_bytes + time.length + 1), end);
    lines.push(`${time} ${shown.toString('utf8')}`);
    left_bytes -= bytes;
    end = begin;
  }
  return lines.reverse().join('');
}
