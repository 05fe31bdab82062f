/**
 * Runs the two machines that turn a user's file into an image. Each is deleted afterwards with its disk.
 * - `installInMachine` mounts the image's file system, which the host's kernel never does, and installs what Berth
 *   needs into it (`guest/rootfs/usr/lib/berth/install` of debian-12).
 * - `checkBoot` boots the image once like an instance: the guest agent must reply, a key must log in, the disk must
 *   grow and freeze, and the guest must shut down.
 */
import { execFile, spawn } from 'node:child_process';
import { chown, mkdir, readFile, rm } from 'node:fs/promises';
import { connect, type Socket } from 'node:net';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { messageOf } from '../../shared/errors.ts';
import { newId } from '../../shared/ids.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import { createOverlay, overlayPaths } from '../disk/overlay-files.ts';
import { applyKeys } from '../guest/authorized-keys.ts';
import { GuestAgent } from '../guest/guest-agent.ts';
import { guestExec } from '../guest/guest-commands.ts';
import { rootFileSystemUse } from '../guest/guest-use.ts';
import { readHostKeys, waitForSsh } from '../guest/sshd.ts';
import { CLEAN_ENV, filesOfVm, inJail, type Jail, prepareRuntimeDir } from '../qemu/confinement.ts';
import {
  type Accelerator,
  blockdev,
  commonArguments,
  device,
  machineFor,
  onBus,
  qemuArguments,
  type VmSpec,
  vmSockets,
} from '../qemu/qemu-command.ts';
import {
  freeLoopbackPort,
  killProcess,
  type LaunchedVm,
  launchVm,
  waitForExit,
} from '../qemu/qemu-process.ts';
import type { LocalImage } from './host-images.ts';
import { UnusableImageError } from './read-tar.ts';

const run = promisify(execFile);
const AGENT_UP_MS = 300_000;
const SSHD_UP_MS = 60_000;
const SHUTDOWN_MS = 60_000;
const LOGIN_MS = 60_000;
const FREEZE_MS = 10_000;
const GROWN_BYTES = 2 ** 30;
const MEMORY_MIB = 512;
const CONSOLE_CHARS = 16 * 1024;

export interface CheckOptions {
  readonly image: LocalImage;
  /** A folder of the agent's, with a path short enough for sockets. */
  readonly work_dir: string;
  readonly accel: Accelerator;
  readonly qemu_binary: string;
  readonly qemu_img_binary: string;
  readonly run_as: { readonly uid: number; readonly gid: number } | null;
  readonly jail: Jail | null;
  readonly signal: AbortSignal;
}

/** @throws UnusableImageError with the failed check */
export async function checkBoot(options: CheckOptions): Promise<void> {
  const { image, work_dir, run_as, jail } = options;
  const instance_id = newId('inst');
  const runtime_dir = join(work_dir, 'r');
  if (run_as) prepareRuntimeDir(runtime_dir, run_as.uid, run_as.gid);
  else await mkdir(runtime_dir, { mode: 0o700 });
  await createOverlay({
    folder: work_dir,
    instance_id,
    size_bytes: image.size_bytes + GROWN_BYTES,
    qemu_img_binary: options.qemu_img_binary,
    ...(run_as ? { owner: run_as } : {}),
  });
  const ssh_forward_port = await freeLoopbackPort();
  const overlay_path = overlayPaths(work_dir, instance_id).overlay;
  const machine: VmSpec = {
    ...{ instance_id, vm_id: newId('vm'), cpus: 1, memory_mib: MEMORY_MIB, accel: options.accel },
    ...{ kernel_path: image.kernel_path, initrd_path: image.initrd_path, hostname: 'image-check' },
    ...{ overlay_path, base_path: image.rootfs_path, runtime_dir },
    network: { kind: 'user', ssh_forward_port, restricted: true },
  };
  const vm = await launchVm({
    qemu_binary: options.qemu_binary,
    arguments: qemuArguments(machine),
    runtime_dir,
    log_path: join(work_dir, 'qemu.log'),
    ...(run_as ? { run_as } : {}),
    ...(run_as && jail ? { jail: { jail, files: filesOfVm(machine) } } : {}),
  });
  const agent = new GuestAgent(vmSockets(runtime_dir).agent);
  const console = watchConsole(vmSockets(runtime_dir).console);
  const died = new AbortController();
  const unwatch = vm.qmp.onClose(() => died.abort(new Error('the VM ended')));
  try {
    await vm.qmp.execute('cont', undefined);
    const signal = AbortSignal.any([options.signal, died.signal]);
    await check({ agent, vm, image, port: ssh_forward_port, work_dir, signal });
  } catch (error) {
    options.signal.throwIfAborted();
    const said = lastOutput(console.text());
    throw new UnusableImageError(
      `booted to be checked, ${messageOf(error)}${said ? ` (console: ${said})` : ''}`,
      {
        cause: error,
      },
    );
  } finally {
    unwatch();
    agent.close();
    console.socket.destroy();
    vm.qmp.close();
    killProcess(vm.identity, 'SIGKILL');
    await waitForExit(vm.identity, 5_000);
    await rm(runtime_dir, { recursive: true, force: true });
    await rm(overlay_path, { force: true });
  }
}

interface Checked {
  readonly agent: GuestAgent;
  readonly vm: LaunchedVm;
  readonly image: LocalImage;
  readonly port: number;
  readonly work_dir: string;
  readonly signal: AbortSignal;
}

async function check({ agent, vm, image, port, work_dir, signal }: Checked): Promise<void> {
  await agent.waitUntilUp(AGENT_UP_MS, signal);
  const key_path = join(work_dir, 'key');
  await run('ssh-keygen', ['-q', '-t', 'ed25519', '-N', '', '-C', '', '-f', key_path]);
  await applyKeys(agent, [(await readFile(`${key_path}.pub`, 'utf8')).trim()], {
    what: 'end',
    timeout_ms: LOGIN_MS,
  });
  await waitForSsh({ host: '127.0.0.1', port }, SSHD_UP_MS, signal).catch(async (error: unknown) => {
    throw new Error(
      `${messageOf(error)}: ${await inGuest(agent, '/usr/sbin/sshd -t 2>&1; tail -n 3 /run/berth/sshd.log')}`,
    );
  });
  await readHostKeys(agent);
  await login(port, key_path, signal).catch(async (error: unknown) => {
    const why = await inGuest(agent, 'tail -n 3 /run/berth/sshd.log');
    throw new Error(`root cannot log in with a key: ${why || messageOf(error)}`);
  });
  const { total_bytes = 0 } = (await rootFileSystemUse(agent, { timeout_ms: LOGIN_MS })) ?? {};
  if (total_bytes <= image.size_bytes) throw new Error('its root file system does not grow with its disk');
  try {
    await agent.fsfreeze(FREEZE_MS);
  } finally {
    await agent.thaw({ timeout_ms: FREEZE_MS });
  }
  const off = vm.qmp.waitForEvent((event) => event.event === 'SHUTDOWN', { timeout_ms: SHUTDOWN_MS, signal });
  off.catch(() => undefined);
  await agent.shutdown('powerdown');
  await off.catch(() => {
    throw new Error('it does not shut down on request');
  });
}

async function login(port: number, key_path: string, signal: AbortSignal): Promise<void> {
  const options = [
    'BatchMode=yes',
    'StrictHostKeyChecking=no',
    'UserKnownHostsFile=/dev/null',
    'LogLevel=ERROR',
  ];
  const words = [
    '-F',
    'none',
    '-i',
    key_path,
    '-p',
    String(port),
    ...options.flatMap((each) => ['-o', each]),
  ];
  await run('ssh', [...words, 'root@127.0.0.1', 'true'], { timeout: LOGIN_MS, signal });
}

/** The output of a command in the guest; empty when it cannot run. */
async function inGuest(agent: GuestAgent, command: string): Promise<string> {
  try {
    const { stdout } = await guestExec(agent, { path: '/bin/sh', args: ['-c', command], timeout_ms: 10_000 });
    return lastOutput(stdout.toString('latin1'));
  } catch {
    return '';
  }
}

function watchConsole(path: string): { socket: Socket; text: () => string } {
  let text = '';
  const socket = connect(path);
  socket.on('error', () => undefined);
  socket.on('data', (chunk: Buffer) => {
    text = (text + chunk.toString('latin1')).slice(-CONSOLE_CHARS);
  });
  return { socket, text: () => text };
}

const DONE = 'berth-install-ok';
/** Escape sequences of terminals (ECMA-48, 5.3 and 5.4): firmware clears the screen instead of ending its last line. */
const TERMINAL = new RegExp(`${'\u001b'}(?:\\[[0-9;?]*[A-Za-z]|[@-~])`, 'g');
const PROBLEM = /^berth(?:-install)?: (.+?)\r?$/gm;
const TIMEOUT_MS = 15 * 60_000;
const MAX_OUTPUT_CHARS = 256 * 1024;

export interface InstallOptions {
  readonly rootfs_path: string;
  /** debian-12, with kernel, initrd and files. */
  readonly base: LocalImage;
  readonly accel: Accelerator;
  readonly qemu_binary: string;
  readonly run_as: { readonly uid: number; readonly gid: number } | null;
  readonly jail: Jail | null;
  readonly signal: AbortSignal;
}

/**
 * Installs what Berth needs into a custom image, in a machine that mounts the image's file system and runs
 * `guest/rootfs/usr/lib/berth/install` of debian-12. The host's kernel never mounts that file system.
 *
 * @throws UnusableImageError with everything that is missing
 */
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
  throw new UnusableImageError(`Berth's files could not be installed in it: ${lastOutput(output)}`);
}

/** The problems that the machine has printed. */
export function problemsIn(output: string): string[] {
  return [...output.replace(TERMINAL, '\n').matchAll(PROBLEM)].map(([, problem]) => untrustedText(problem));
}

/** For people, without escape sequences. */
function lastOutput(output: string): string {
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
