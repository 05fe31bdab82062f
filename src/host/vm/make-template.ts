/**
 * Makes a template: boots the image with `berth.template=1`, waits until its init sleeps, and saves its memory.
 *
 * Invariants:
 * - the machine belongs to no instance: it has a new id, an empty disk that must stay empty, and no network;
 * - all its files are in `templates/making`: after a crash the next agent ends a QEMU found there and removes the folder;
 * - it runs at the lowest priority, because no user waits for it.
 */
import { readdirSync } from 'node:fs';
import { chmod, mkdir, rm } from 'node:fs/promises';
import { setPriority } from 'node:os';
import { join } from 'node:path';
import { newId } from '../../shared/ids.ts';
import { createOverlay, ensureRoom } from '../disk/overlay-files.ts';
import { openAgentChannel } from '../guest/guest-agent.ts';
import { freeLoopbackPort } from '../qemu/free-port.ts';
import { filesOfVm, type Jail } from '../qemu/jail.ts';
import { hardwareTraits, qemuVersion } from '../qemu/machine-traits.ts';
import { maxStreamBytes, saveStream } from '../qemu/migration.ts';
import { killProcess, type ProcessIdentity, waitForExit } from '../qemu/process-identity.ts';
import { qemuArguments } from '../qemu/qemu-command.ts';
import { findOrphans, type LaunchedVm, launchVm } from '../qemu/qemu-process.ts';
import type { QmpClient } from '../qemu/qmp-client.ts';
import { prepareRuntimeDir } from '../qemu/uid.ts';
import { type VmSpec, vmSockets } from '../qemu/vm-spec.ts';
import { makingFolder, publishTemplate, type Shape, templateKey, writeMemory } from './template-files.ts';
import { isAsleep } from './wake-machine.ts';

const ASLEEP_MS = 300_000;
const EXIT_MS = 5_000;
/** Free disk space needed besides the memory. */
const SPARE_BYTES = 1024 ** 3;
const LOWEST_PRIORITY = 19;

export interface MakeOptions {
  readonly templates_dir: string;
  readonly shape: Shape;
  readonly qemu_binary: string;
  readonly qemu_img_binary: string;
  /** null: as the agent's user. */
  readonly run_as: { readonly uid: number; readonly gid: number } | null;
  /** null: no jail. */
  readonly jail: Jail | null;
  readonly signal: AbortSignal;
}

/** Resolves when the template exists. When it throws, nothing is left of it. */
export async function makeTemplate(options: MakeOptions): Promise<void> {
  const { templates_dir, shape, run_as, signal } = options;
  const work_dir = makingFolder(templates_dir);
  const runtime_dir = join(work_dir, 'run');
  await clearAway(templates_dir);
  await ensureRoom(templates_dir, 'a template', maxStreamBytes(shape.memory_mib) + SPARE_BYTES);
  await mkdir(work_dir);
  // mkdir's mode is subject to the umask.
  await chmod(work_dir, 0o711);
  let vm: LaunchedVm | undefined;
  try {
    if (run_as) prepareRuntimeDir(runtime_dir, run_as.uid, run_as.gid);
    else await mkdir(runtime_dir, { mode: 0o700 });
    vm = await launch(options, work_dir, runtime_dir);
    lowerPriority(vm.identity);
    await untilAsleep(vm, vmSockets(runtime_dir).agent, signal);
    await vm.qmp.execute('stop', undefined);
    await save(options, vm.qmp, runtime_dir);
  } finally {
    vm?.qmp.close();
    if (vm) await end(vm.identity);
    await rm(work_dir, { recursive: true, force: true });
  }
}

/** Ends the QEMU and removes the files of a template that an earlier agent was making. */
export async function clearAway(templates_dir: string): Promise<void> {
  for (const { identity } of findOrphans(templates_dir)) await end(identity);
  await rm(makingFolder(templates_dir), { recursive: true, force: true });
}

async function end(identity: ProcessIdentity): Promise<void> {
  killProcess(identity, 'SIGKILL');
  await waitForExit(identity, EXIT_MS);
}

async function launch(
  { shape, qemu_binary, qemu_img_binary, run_as, jail }: MakeOptions,
  work_dir: string,
  runtime_dir: string,
): Promise<LaunchedVm> {
  const { image, cpus, memory_mib, accel, network } = shape;
  const instance_id = newId('inst');
  const { overlay } = await createOverlay({
    folder: work_dir,
    instance_id,
    size_bytes: image.size_bytes,
    qemu_img_binary,
    ...(run_as ? { owner: run_as } : {}),
  });
  const machine: VmSpec = {
    ...{ instance_id, vm_id: newId('vm'), cpus, memory_mib, accel, hostname: 'template' },
    ...{ kernel_path: image.kernel_path, initrd_path: image.initrd_path, base_path: image.rootfs_path },
    ...{ overlay_path: overlay, runtime_dir },
    // Its state must be that of a machine with this network: QEMU's user network has some of its own.
    network:
      network === 'tap'
        ? { kind: 'none' }
        : { kind: 'user', ssh_forward_port: await freeLoopbackPort(), restricted: true },
    kernel_parameters: ['berth.template=1'],
  };
  return launchVm({
    qemu_binary,
    arguments: qemuArguments(machine),
    runtime_dir,
    log_path: join(work_dir, 'qemu.log'),
    ...(run_as ? { run_as } : {}),
    ...(run_as && jail ? { jail: { jail, files: filesOfVm(machine) } } : {}),
  });
}

/** All of its threads exist before its guest runs. */
function lowerPriority({ pid }: ProcessIdentity): void {
  try {
    for (const thread of readdirSync(`/proc/${pid}/task`)) setPriority(Number(thread), LOWEST_PRIORITY);
  } catch {
    // It has ended, which is detected elsewhere.
  }
}

async function untilAsleep(vm: LaunchedVm, agent_socket: string, signal: AbortSignal): Promise<void> {
  const deadline = performance.now() + ASLEEP_MS;
  const channel = await openAgentChannel(agent_socket, deadline);
  const given_up = () => channel.destroy(new Error('given up'));
  signal.addEventListener('abort', given_up, { once: true });
  try {
    signal.throwIfAborted();
    await vm.qmp.execute('cont', undefined);
    while (!isAsleep(await channel.nextLine(deadline, 'booting a template')));
  } finally {
    signal.removeEventListener('abort', given_up);
    channel.destroy(new Error('it sleeps'));
  }
}

async function save(
  { templates_dir, shape, run_as, signal }: MakeOptions,
  qmp: QmpClient,
  runtime_dir: string,
): Promise<void> {
  const { cpus, memory_mib, accel, image, network } = shape;
  const traits = {
    ...hardwareTraits({ cpus, memory_mib, accel, image_version: image.version, network }),
    qemu: await qemuVersion(qmp),
  };
  const outlet = { path: join(runtime_dir, 'memory.sock'), owner: run_as, signal };
  const { taken, whole } = await saveStream(qmp, outlet, (stream) =>
    writeMemory(templates_dir, stream, maxStreamBytes(memory_mib)),
  );
  if (!whole) throw new Error('QEMU did not send all of its memory');
  const written = (await qmp.execute('query-blockstats', {})).some(
    ({ stats }) => stats.wr_operations + stats.unmap_operations > 0,
  );
  if (written) throw new Error('the guest has written to its disk');
  await publishTemplate(templates_dir, templateKey(shape), { traits, ...taken });
}
