/**
 * Chooses the accelerator of this host's VMs: KVM or emulation (TCG). KVM is used only after a test guest has booted
 * with it: a /dev/kvm that opens, and even creates VMs, may still run no guest (incomplete nested virtualisation).
 * Invariant: no process of a test outlives the call.
 */
import { execFile, spawn } from 'node:child_process';
import { accessSync, constants, readFileSync, statSync } from 'node:fs';
import { readFile } from 'node:fs/promises';
import { promisify } from 'node:util';
import { messageOf } from '../../shared/errors.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import { writeFileDurably } from '../durable-file.ts';
import { CLEAN_ENV, inJail, type Jail, type VmUser } from './confinement.ts';
import { ACCELERATORS, type Accelerator, probeArguments } from './qemu-command.ts';

const run = promisify(execFile);
const PROBE_WORD = 'berth-probe-ok';
const MAX_OUTPUT_CHARS = 64 * 1024;
const KVM_DEVICE = '/dev/kvm';
const PROBE_MS = 10_000;
/** The second attempt may take this many times as long. A host whose KVM hangs waits for both. */
const PATIENCE = 2;

const ACCELERATOR_SETTINGS = ['auto', 'kvm', 'tcg'] as const;
export type AcceleratorSetting = (typeof ACCELERATOR_SETTINGS)[number];

export interface AcceleratorChoice {
  readonly accel: Accelerator;
  /** Why this one, for people. */
  readonly reason: string;
}

export interface ProbeOptions {
  readonly qemu_binary: string;
  readonly kernel_path: string;
  readonly initrd_path: string;
  /** Time limit of one test guest. Default 10 s. */
  readonly timeout_ms?: number;
  /** The VMs' user, whose group must have access to /dev/kvm. Absent: the agent's user. */
  readonly run_as?: VmUser;
  readonly jail?: Jail | null;
}

export interface ChooseOptions extends ProbeOptions {
  readonly setting: AcceleratorSetting;
  /** Caches the result of `auto` for the same kernel, initramfs, QEMU and boot of the host. */
  readonly cache_path?: string;
}

/** The setting requires KVM, which does not work here. */
export class AcceleratorError extends Error {
  override name = 'AcceleratorError';
}

/** Rejects with {@link AcceleratorError} when the setting is `kvm` and no guest boots on it. */
export async function chooseAccelerator(options: ChooseOptions): Promise<AcceleratorChoice> {
  if (options.setting === 'tcg') return { accel: 'tcg', reason: 'software emulation, by setting' };
  const key = await cacheKey(options);
  if (options.setting === 'auto' && options.cache_path) {
    const cached = await readCache(options.cache_path, key);
    if (cached) return cached;
  }
  const problem = kvmProblem() ?? (await probePatiently(options));
  if (problem !== null && options.setting === 'kvm') {
    throw new AcceleratorError(`KVM does not work on this host: ${problem}`);
  }
  const choice: AcceleratorChoice =
    problem === null
      ? { accel: 'kvm', reason: 'a test guest booted on KVM' }
      : { accel: 'tcg', reason: `software emulation: ${problem}` };
  if (options.setting === 'auto' && options.cache_path) {
    await writeFileDurably(options.cache_path, `${JSON.stringify({ key, ...choice })}\n`);
  }
  return choice;
}

/** Tries twice, because the result is cached until the host's next boot, and a host that has just booted is busy. */
async function probePatiently(options: ProbeOptions): Promise<string | null> {
  if ((await probeGuest('kvm', options)) === null) return null;
  return probeGuest('kvm', { ...options, timeout_ms: (options.timeout_ms ?? PROBE_MS) * PATIENCE });
}

/** Boots the test guest. Returns null when it came up, else what happened, for people. */
export async function probeGuest(accel: Accelerator, options: ProbeOptions): Promise<string | null> {
  const timeout_ms = options.timeout_ms ?? PROBE_MS;
  const { run_as, jail, kernel_path, initrd_path } = options;
  const command = [options.qemu_binary, ...probeArguments({ accel, ...options })];
  const devices = accel === 'kvm' ? [KVM_DEVICE] : [];
  const files = { reads: [kernel_path, initrd_path], writes: [], devices };
  const jailed = run_as && jail ? inJail({ jail, user: run_as, files }, command) : null;
  const [file = '', ...words] = jailed ?? command;
  const child = spawn(file, words, {
    stdio: ['ignore', 'pipe', 'pipe'],
    cwd: '/',
    env: CLEAN_ENV,
    ...(jailed || !run_as ? {} : { uid: run_as.uid, gid: run_as.gid }),
  });
  let output = '';
  let timed_out = false;
  const ended = Promise.withResolvers<string>();
  const hear = (chunk: Buffer): void => {
    output = (output + chunk.toString('latin1')).slice(-MAX_OUTPUT_CHARS);
    if (output.includes(PROBE_WORD)) child.kill('SIGKILL');
  };
  child.stdout.on('data', hear);
  child.stderr.on('data', hear);
  child.once('error', (error) => ended.resolve(`QEMU does not start (${error.message})`));
  // `close` comes after the last output, unlike `exit`.
  child.once('close', (status, signal) => {
    ended.resolve(`QEMU ended with ${signal ?? `status ${status}`}`);
  });
  const timer = setTimeout(() => {
    timed_out = true;
    child.kill('SIGKILL');
  }, timeout_ms);
  const end = await ended.promise;
  clearTimeout(timer);
  if (output.includes(PROBE_WORD)) return null;
  if (accel === 'kvm' && options.run_as && /kvm.*Permission denied/.test(output)) {
    const { uid, gid } = options.run_as;
    return `${KVM_DEVICE} opens for this process, but not for the users of VMs (tried ${uid}:${gid})`;
  }
  const what = timed_out
    ? `a test guest did not boot within ${timeout_ms / 1000} s`
    : `no test guest boots, ${end}`;
  const last = lastWords(output);
  return `${accel === 'kvm' ? `${KVM_DEVICE} opens, but ` : ''}${what}${last ? `: ${last}` : ''}`;
}

/** Why KVM need not be tried; null: try it. */
function kvmProblem(): string | null {
  try {
    accessSync(KVM_DEVICE, constants.R_OK | constants.W_OK);
    return null;
  } catch (error) {
    return `${KVM_DEVICE} cannot be opened (${messageOf(error)})`;
  }
}

/** QEMU's own error if there is one, else the last line with text, without control characters. */
function lastWords(output: string): string {
  const lines = output
    .split('\n')
    .map((line) => untrustedText(line.replace(/^\d{4}-\d\d-\d\dT[\d:.]+Z /, '')))
    .filter((line) => line !== '');
  const own = lines.find((line) => /qemu-system-\S+: (?!warning)/.test(line));
  return own ?? lines.at(-1) ?? '';
}

async function cacheKey(options: ChooseOptions): Promise<string> {
  const { stdout } = await run(options.qemu_binary, ['--version'], { timeout: 10_000 }).catch((error) => {
    throw new AcceleratorError(`${options.qemu_binary} does not run: ${messageOf(error)}`);
  });
  const fileKey = (path: string): string => {
    const { size, mtimeMs, ino } = statSync(path);
    return `${path}:${size}:${mtimeMs}:${ino}`;
  };
  const device = (): string => {
    const stat = statSync(KVM_DEVICE, { throwIfNoEntry: false });
    return stat ? `${stat.mode}:${stat.uid}:${stat.gid}` : 'absent';
  };
  return [
    fileKey(options.kernel_path),
    fileKey(options.initrd_path),
    stdout.split('\n')[0] ?? '',
    readFileSync('/proc/sys/kernel/random/boot_id', 'utf8').trim(),
    device(),
    options.run_as ? `${options.run_as.uid}:${options.run_as.gid}` : 'self',
  ].join('|');
}

async function readCache(path: string, key: string): Promise<AcceleratorChoice | null> {
  try {
    const value = JSON.parse(await readFile(path, 'utf8')) as Record<string, unknown>;
    const accel = ACCELERATORS.find((name) => name === value['accel']);
    const reason = value['reason'];
    return value['key'] === key && accel && typeof reason === 'string' ? { accel, reason } : null;
  } catch {
    // Absent or corrupt: probe again.
    return null;
  }
}
