/**
 * Starts QEMU as a person would start it by hand: with Berth's image, kernel and machine options, but without API,
 * database, agent, dirty bitmap, separate user or control group. Benchmarks compare Berth with it.
 *
 * The image has the benchmark's SSH key on its disk, which is the quickest way. Berth sets the key through the guest
 * agent.
 */
import { execFile, spawn } from 'node:child_process';
import { closeSync, existsSync, openSync } from 'node:fs';
import { chmod, constants, copyFile, mkdir, readFile, rm, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { promisify } from 'node:util';
import { createOverlay, overlayPaths } from '../src/host/disk/overlay-files.ts';
import { GuestAgent } from '../src/host/guest/guest-agent.ts';
import { type Accelerator, NODES, qemuArguments, vmSockets } from '../src/host/qemu/qemu-command.ts';
import {
  freeLoopbackPort,
  identityOfProcess,
  killProcess,
  waitForExit,
} from '../src/host/qemu/qemu-process.ts';
import { newId } from '../src/shared/ids.ts';
import type { SshTarget } from './ssh.ts';

const run = promisify(execFile);

/** Berth's defaults. */
const CPUS = 1;
const UP_MS = 120_000;
const MEMORY_MIB = 512;
const DISK_BYTES = 8 * 2 ** 30;
const SSHD_SETTINGS = '/etc/ssh/sshd_config.d/berth.conf';

export interface BareImage {
  readonly folder: string;
  readonly image_dir: string;
  readonly rootfs_path: string;
}

/** A copy of the image whose sshd accepts `public_key`. */
export async function bakeKey(folder: string, image_dir: string, public_key: string): Promise<BareImage> {
  await mkdir(folder);
  const rootfs_path = join(folder, 'rootfs.img');
  await copyFile(join(image_dir, 'rootfs.img'), rootfs_path, constants.COPYFILE_FICLONE);
  await chmod(rootfs_path, 0o600);
  await writeFile(join(folder, 'keys'), `${public_key}\n`);
  // sshd takes the first value it reads, and reads this file of Berth's before all others.
  const { stdout: settings } = await run('debugfs', ['-R', `cat ${SSHD_SETTINGS}`, rootfs_path]);
  const line = /^AuthorizedKeysFile .*$/m;
  if (!line.test(settings)) throw new Error(`${SSHD_SETTINGS} of the image does not say where keys are`);
  await writeFile(join(folder, 'conf'), settings.replace(line, 'AuthorizedKeysFile /etc/ssh/bench_keys'));
  const commands = [
    `write ${join(folder, 'keys')} /etc/ssh/bench_keys`,
    `rm ${SSHD_SETTINGS}`,
    `write ${join(folder, 'conf')} ${SSHD_SETTINGS}`,
    ...['/etc/ssh/bench_keys', SSHD_SETTINGS].flatMap((path) => [
      `set_inode_field ${path} mode 0100600`,
      `set_inode_field ${path} uid 0`,
      `set_inode_field ${path} gid 0`,
    ]),
  ];
  await writeFile(join(folder, 'commands'), `${commands.join('\n')}\n`);
  // It prints to stderr on success too; the first login shows whether it worked.
  await run('debugfs', ['-w', '-f', join(folder, 'commands'), rootfs_path]);
  return { folder, image_dir, rootfs_path };
}

export interface BareMachine {
  /** performance.now() just before the process was started. */
  readonly started_ms: number;
  readonly target: SshTarget;
  /**
   * Resolves when the guest agent answers. Before that, connecting is useless: QEMU's user network accepts connections that
   * the guest cannot answer yet, and these hang for seconds.
   */
  readonly untilUp: (signal: AbortSignal) => Promise<void>;
  readonly end: () => Promise<void>;
}

/** Starts it on a new overlay, or on a raw copy of the image, which is made before the clock starts. */
export async function startBare(
  image: BareImage,
  accel: Accelerator,
  { raw = false }: { readonly raw?: boolean } = {},
): Promise<BareMachine> {
  const instance_id = newId('inst');
  const runtime_dir = join(image.folder, 'run');
  await rm(runtime_dir, { recursive: true, force: true });
  await mkdir(runtime_dir);
  const { overlay } = overlayPaths(image.folder, instance_id);
  if (raw) {
    await copyFile(image.rootfs_path, overlay, constants.COPYFILE_FICLONE);
    await truncate(overlay, DISK_BYTES);
  } else {
    const about = { folder: image.folder, instance_id, size_bytes: DISK_BYTES };
    await createOverlay({ ...about, qemu_img_binary: 'qemu-img' });
  }
  const target = { host: '127.0.0.1', port: await freeLoopbackPort() };
  const wanted = qemuArguments({
    instance_id,
    vm_id: newId('vm'),
    cpus: CPUS,
    memory_mib: MEMORY_MIB,
    accel,
    kernel_path: join(image.image_dir, 'vmlinuz'),
    initrd_path: join(image.image_dir, 'initrd.img'),
    hostname: 'bare',
    overlay_path: overlay,
    base_path: image.rootfs_path,
    runtime_dir,
    network: { kind: 'user', ssh_forward_port: target.port, restricted: false },
  }).filter((argument) => argument !== '-S'); // runs at once, because nothing sends `cont`
  const args = raw ? onRawFile(wanted) : wanted;
  const log_path = join(image.folder, 'qemu.log');
  const log_fd = openSync(log_path, 'w');
  const started_ms = performance.now();
  const child = spawn('qemu-system-x86_64', args, { stdio: ['ignore', log_fd, log_fd], detached: true });
  closeSync(log_fd);
  const failed = new Promise<never>((_, reject) => child.once('error', reject));
  await Promise.race([failed, new Promise<void>((resolve) => child.once('spawn', resolve))]);
  const identity = child.pid === undefined ? null : identityOfProcess(child.pid);
  if (!identity) throw new Error(`QEMU ended at once: ${await readFile(log_path, 'utf8')}`);
  const agent = new GuestAgent(vmSockets(runtime_dir).agent);
  const untilUp = async (signal: AbortSignal) => {
    await untilThere(vmSockets(runtime_dir).agent, signal);
    await agent.waitUntilUp(UP_MS, signal);
  };
  const end = async () => {
    agent.close();
    killProcess(identity, 'SIGKILL');
    await waitForExit(identity, 10_000);
    await rm(overlay, { force: true });
  };
  return { started_ms, target, untilUp, end };
}

/** The disk's format is raw, with the overlay's cache and discard modes. The base image is not opened. */
function onRawFile(args: readonly string[]): string[] {
  const out: string[] = [];
  for (let i = 0; i < args.length; i++) {
    const [argument = '', value = ''] = args.slice(i, i + 2);
    if (argument !== '-blockdev') {
      out.push(argument);
      continue;
    }
    i += 1;
    const { backing: _, 'detect-zeroes': __, ...node } = JSON.parse(value) as Record<string, unknown>;
    if (node['node-name'] === NODES.base || node['node-name'] === NODES.base_file) continue;
    if (node['node-name'] === NODES.overlay) node['driver'] = 'raw';
    out.push('-blockdev', JSON.stringify(node));
  }
  return out;
}

/** QEMU makes its sockets a moment after it was started. */
async function untilThere(path: string, signal: AbortSignal): Promise<void> {
  const deadline_ms = performance.now() + UP_MS;
  while (!existsSync(path)) {
    if (performance.now() > deadline_ms) throw new Error(`QEMU does not make ${path}`);
    await sleep(5, undefined, { signal });
  }
  await sleep(20, undefined, { signal });
}
