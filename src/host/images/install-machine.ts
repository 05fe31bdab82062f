/**
 * Installs what Berth needs into a custom image, in a machine that mounts the image's file system and runs
 * `guest/rootfs/usr/lib/berth/install` of debian-12. The host's kernel never mounts that file system.
 */
import { spawn } from 'node:child_process';
import { chown } from 'node:fs/promises';
import { untrustedText } from '../../shared/untrusted-text.ts';
import { CLEAN_ENV, inJail, type Jail } from '../qemu/jail.ts';
import { blockdev, commonArguments, device, onBus } from '../qemu/qemu-command.ts';
import { type Accelerator, machineFor } from '../qemu/vm-spec.ts';
import type { HostImage } from './host-images.ts';
import { UnusableImageError } from './read-tar.ts';

const DONE = 'berth-install-ok';
/** Escape sequences of terminals (ECMA-48, 5.3 and 5.4): firmware clears the screen instead of ending its last line. */
const TERMINAL = new RegExp(`${'\u001b'}(?:\\[[0-9;?]*[A-Za-z]|[@-~])`, 'g');
const PROBLEM = /^berth(?:-install)?: (.+?)\r?$/gm;
const TIMEOUT_MS = 15 * 60_000;
const MAX_OUTPUT_CHARS = 256 * 1024;

export interface InstallOptions {
  readonly rootfs_path: string;
  /** debian-12, with kernel, initrd and files. */
  readonly base: HostImage;
  readonly accel: Accelerator;
  readonly qemu_binary: string;
  readonly run_as: { readonly uid: number; readonly gid: number } | null;
  readonly jail: Jail | null;
  readonly signal: AbortSignal;
}

/** @throws UnusableImageError with everything that is missing */
export async function installInMachine(options: InstallOptions): Promise<void> {
  const { rootfs_path, base, run_as, jail, qemu_binary, signal } = options;
  if (run_as) await chown(rootfs_path, run_as.uid, run_as.gid);
  const command = [qemu_binary, ...installArguments(options)];
  const files = {
    reads: [base.kernel_path, base.initrd_path, base.rootfs_path],
    writes: [rootfs_path],
    devices: options.accel === 'kvm' ? ['/dev/kvm'] : [],
  };
  const jailed = run_as && jail ? inJail({ jail, user: run_as, files }, command) : null;
  const [file = '', ...words] = jailed ?? command;
  const child = spawn(file, words, {
    stdio: ['ignore', 'pipe', 'pipe'],
    cwd: '/',
    env: CLEAN_ENV,
    signal: AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)]),
    killSignal: 'SIGKILL',
    ...(jailed ? {} : run_as),
  });
  let output = '';
  for (const stream of [child.stdout, child.stderr]) {
    stream.on('data', (chunk: Buffer) => {
      output = (output + chunk.toString('latin1')).slice(-MAX_OUTPUT_CHARS);
    });
  }
  await new Promise<void>((resolve, reject) => {
    child.once('error', (error) =>
      error.name === 'AbortError' ? child.once('close', () => resolve()) : reject(error),
    );
    child.once('close', () => resolve());
  });
  signal.throwIfAborted();
  if (run_as) await chown(rootfs_path, 0, 0);
  if (output.includes(DONE)) return;
  const problems = problemsIn(output);
  if (problems.length > 0) throw new UnusableImageError(problems.join('; '));
  throw new UnusableImageError(`Berth's files could not be installed in it: ${lastLines(output)}`);
}

/** The problems that the machine has printed. */
export function problemsIn(output: string): string[] {
  return [...output.replace(TERMINAL, '\n').matchAll(PROBLEM)].map(([, problem]) => untrustedText(problem));
}

/** For people, without escape sequences. */
export function lastLines(output: string): string {
  const lines = output.replace(TERMINAL, '\n').split('\n').map(untrustedText);
  const said = lines.filter((line) => line !== '').slice(-3);
  return untrustedText(said.join(' | '));
}

/** No network, no guest agent. Its writes need not be durable before it ends. */
function installArguments({ rootfs_path, base, accel }: InstallOptions): string[] {
  const machine = machineFor(accel);
  const disk = (name: string, path: string, read_only: boolean) => [
    ...blockdev({
      driver: 'file',
      'node-name': `${name}-file`,
      filename: path,
      'read-only': read_only,
      discard: 'unmap',
      cache: { direct: false, 'no-flush': true },
    }),
    ...blockdev({
      driver: 'raw',
      'node-name': name,
      file: `${name}-file`,
      'read-only': read_only,
      discard: 'unmap',
    }),
    ...device({ driver: onBus('virtio-blk', machine), drive: name, serial: `berth-${name}` }),
  ];
  return [
    '-name',
    'guest=berth-install',
    ...commonArguments(machine, accel),
    '-no-reboot',
    '-sandbox',
    'on,obsolete=deny,elevateprivileges=deny,spawn=deny,resourcecontrol=deny',
    '-m',
    'size=512M',
    '-kernel',
    base.kernel_path,
    '-initrd',
    base.initrd_path,
    '-append',
    'console=ttyS0 quiet loglevel=4 panic=-1 berth.install=1',
    '-chardev',
    'stdio,id=console,signal=off',
    '-serial',
    'chardev:console',
    ...disk('disk', rootfs_path, false),
    ...disk('base', base.rootfs_path, true),
  ];
}
