/**
 * qemu-img on a file that somebody else could write. It parses that file, so it runs as that user (or as root without its powers,
 * for an operator's file), in a jail with that file alone where this host has jails, and is bounded in time and memory.
 */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { asUser, CLEAN_ENV, inJail, type Jail, type JailFiles } from './jail.ts';
import type { VmUser } from './uid.ts';

const run = promisify(execFile);
const MEMORY_BYTES = 2 ** 30;

export interface QemuImgRun {
  readonly qemu_img_binary: string;
  /** `operator`: whoever we are; null: the same, where VMs run as ourselves. */
  readonly user: VmUser | 'operator' | null;
  readonly jail: Jail | null;
  /** All that it may open. */
  readonly files: JailFiles;
  readonly timeout_ms?: number;
  readonly signal?: AbortSignal;
}

/** Rejects as execFile does, with `stderr`. */
export async function qemuImg(args: readonly string[], options: QemuImgRun): Promise<{ stdout: string }> {
  const { user, jail, files, timeout_ms, signal } = options;
  const bounded = ['prlimit', `--as=${MEMORY_BYTES}`, '--core=0', '--', options.qemu_img_binary, ...args];
  const [file = '', ...rest] =
    jail && user !== null
      ? inJail({ jail, user, files }, bounded)
      : user === null || user === 'operator'
        ? bounded
        : [...asUser(user), ...bounded];
  return run(file, rest, {
    env: CLEAN_ENV,
    cwd: '/',
    killSignal: 'SIGKILL',
    ...(timeout_ms === undefined ? {} : { timeout: timeout_ms }),
    ...(signal ? { signal } : {}),
  });
}
