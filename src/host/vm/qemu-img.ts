/**
 * Runs qemu-img on an untrusted file. As it parses the file, it runs as the file's user (or as root without capabilities, for
 * an operator's file), in a jail with only that file if the host has jails, and with limited time and memory.
 */
import { execFile } from 'node:child_process';
import { promisify } from 'node:util';
import { asUser, CLEAN_ENV, inJail, type Jail, type JailFiles } from './jail.ts';
import type { VmUser } from './uid.ts';

const run = promisify(execFile);
const MEMORY_BYTES = 2 ** 30;

export interface QemuImgRun {
  readonly qemu_img_binary: string;
  /** `operator`: the present user; null: the same, on hosts where VMs run as the agent's user. */
  readonly user: VmUser | 'operator' | null;
  readonly jail: Jail | null;
  /** The only files that it may open. */
  readonly files: JailFiles;
  readonly timeout_ms?: number;
  readonly signal?: AbortSignal;
}

/** Rejects like execFile, with `stderr`. */
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
