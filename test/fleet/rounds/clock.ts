/**
 * Wall clocks that jump: processes are started with Debian's libfaketime, which adds to their time what a file says. It leaves the
 * monotonic clock and the clock since boot alone, as a clock that is set does.
 */
import { existsSync, renameSync, writeFileSync } from 'node:fs';

const LIBRARY = '/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1';

export const CLOCKS_CAN_JUMP = existsSync(LIBRARY);

/** `path`: the file, in the machine. */
export function clockEnv(path: string): Record<string, string> {
  if (!CLOCKS_CAN_JUMP) return {};
  return {
    LD_PRELOAD: LIBRARY,
    FAKETIME_TIMESTAMP_FILE: path,
    FAKETIME_CACHE_DURATION: '1',
    FAKETIME_DONT_FAKE_MONOTONIC: '1',
    DONT_FAKE_MONOTONIC: '1',
  };
}

export function setClock(path: string, seconds: number): void {
  writeFileSync(`${path}.new`, `${seconds < 0 ? '' : '+'}${seconds}\n`);
  renameSync(`${path}.new`, path);
}
