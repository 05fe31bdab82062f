/**
 * From an assignment to a machine whose guest has run its first instruction: overlay made or taken as it is, the
 * head's blocks served below a new one, the dirty bitmap in place before the guest can write.
 */
import { type FileHandle, open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import type { Assignment, MemoryRef, Reason } from '../../agent-api/types.ts';
import { messageOf } from '../../lib/errors.ts';
import { type HostContext, vmOwner } from '../host-context.ts';
import type { HostImage } from '../image/host-images.ts';
import { Machine } from '../machine/machine.ts';
import { DIRTY_BITMAP, DIRTY_GRANULARITY } from '../machine/machine-disk.ts';
import { makeVmFolder, type VmFolder, type VmRecord, vmFolder, writeRecord } from '../machine/record.ts';
import type { DiskState } from '../overlay/disk-state.ts';
import { LazyOverlay } from '../overlay/lazy-overlay.ts';
import { prepareOverlay, recoveredFrom } from '../overlay/prepare-overlay.ts';
import type { QmpClient } from '../qmp/qmp-client.ts';
import { checkFit, incomingSocket, loadMemory } from '../suspend/load-memory.ts';
import { makeHostKey } from '../template/make-host-key.ts';
import type { Template } from '../template/template-files.ts';
import { loadTemplate, wakeMachine } from '../template/wake-machine.ts';
import { limitProcess, vmLimits } from '../vm/cgroup.ts';
import { limitDisk } from '../vm/disk-limits.ts';
import { syncFile } from '../vm/durable-file.ts';
import { freeLoopbackPort } from '../vm/free-port.ts';
import { filesOfVm } from '../vm/jail.ts';
import { overlayPaths, removeOverlay } from '../vm/overlay.ts';
import { killProcess, type ProcessIdentity, waitForExit } from '../vm/process-identity.ts';
import { kernelCommandLine, macAddress, NODES, qemuArguments, vmSockets } from '../vm/qemu-command.ts';
import { type LaunchedVm, launchVm } from '../vm/qemu-process.ts';
import { prepareRuntimeDir, type VmUser } from '../vm/uid.ts';

export interface Launch {
  readonly context: HostContext;
  readonly assignment: Assignment;
  readonly disk: DiskState;
  /** A guest of this boot has run already. */
  readonly ran: boolean;
  readonly changed: () => void;
  readonly signal: AbortSignal;
}

export interface Launched {
  readonly machine: Machine;
  /** Set when the last boot's writes past the head are not here: the disk continues from the head. */
  readonly recovered: Reason | null;
}

export interface How {
  /** False: the guest is never let go, the machine only holds the disk. */
  readonly run: boolean;
  /** What the guest goes on from; without it the machine boots. */
  readonly memory?: MemoryRef;
  /** It may go on from a template of this host instead of booting. */
  readonly fast?: boolean;
  /** Why it is to go on from nothing; noted until its guest runs. */
  readonly cold?: Reason | null;
}

/** The machine is gone, and what its guest has begun too: without the template it boots. */
export class TemplateError extends Error {
  override name = 'TemplateError';
  readonly template: Template;

  constructor(template: Template, cause: unknown) {
    super(messageOf(cause), { cause });
    this.template = template;
  }
}

/** @throws MemoryUnfitError, MemoryDamagedError, TemplateError, or why the machine cannot be had */
export async function launchMachine(launch: Launch, { run, memory, fast, cold }: How): Promise<Launched> {
  const { context, assignment, disk, ran, signal } = launch;
  const { instance_id, epoch, spec } = assignment;
  const folder = vmFolder(context.paths.vms, instance_id);
  const owner = vmOwner(context, spec.ssh_port);
  const head = await disk.headFor(epoch);
  const verdict = await disk.judgeOverlay(assignment.own_since);
  const overlay = verdict.use;
  // Only this host knows it of a disk that booted while no image was registered, until its first generation.
  const version = head.image_version ?? (overlay === 'none' ? null : disk.overlay_image);
  disk.setOverlayImage(version);
  const { overlay: path } = overlayPaths(context.paths.overlays, instance_id);
  if (overlay === 'unsaved') {
    // What a killed QEMU has left in the host's cache is compared with the head, and committed: it must be as durable.
    await syncFile(path);
    // From here on this placement answers for what the overlay holds, whatever fails below.
    await disk.markDirty(assignment);
  }
  const image = await context.images.forDisk(spec.image, version, signal);
  disk.setOverlayImage(image.version);
  if (memory)
    checkFit({ context, spec }, memory, { generation: head.generation, image_version: image.version });
  const template = run && fast ? await context.templates.find({ image, ...sizeOf(spec) }) : null;
  await makeFolders(folder, owner);
  await prepareOverlay({ context, instance_id, disk, owner }, verdict);
  await using saved = template && (await openSaved(context, template));
  const lazy = disk.filled === 'yes' ? null : await serveBelow(launch, folder, image, owner);
  const offered = run && !memory && !saved ? offerHostKey(folder, owner) : Promise.resolve(undefined);
  const host_key_path = await offered.catch(async (error: unknown) => {
    await lazy?.close();
    throw error;
  });
  const resumes = memory !== undefined;
  const parts: Parts = { owner, lazy, host_key_path, resumes, memory_fd: saved?.file.fd };
  const launched = await launchQemu(launch, folder, image, parts)
    .catch(async (error: unknown) => {
      await lazy?.close();
      throw error;
    })
    .finally(() => host_key_path && rm(host_key_path, { force: true }));
  const { qmp, identity } = launched.vm;
  // Before it is given a memory: what a process has by then stays with the group that it had it in.
  limitMachine(context, assignment, identity);
  const record: VmRecord = {
    ...newRecord(launch, image, launched),
    full_compare: overlay === 'unsaved',
    counts_from: head.commit_id,
    ran,
    frozen: memory?.frozen === true,
    lazy: lazy && { size_bytes: head.size_bytes, base_path: image.rootfs_path },
    resuming: memory !== undefined,
    template: template && { key: template.key, awake: false },
    cold: cold ?? null,
  };
  // A new overlay whose guest never ran is worth nothing; do not keep its room.
  const forgetNew = async () => {
    if (overlay === 'none') await removeOverlay(context.paths.overlays, instance_id);
  };
  try {
    await writeRecord(folder, record);
    if (memory) await loadMemory({ context, disk, qmp, folder, signal }, memory);
    if (saved) await fillFrom(saved, launch, folder, qmp);
    if (overlay !== 'unsaved') await addBitmap(qmp);
    await limitDisk(qmp);
    signal.throwIfAborted();
    context.lease.require();
    if (run || overlay !== 'clean') await disk.markDirty(assignment);
  } catch (error) {
    qmp.close();
    killProcess(identity, 'SIGKILL');
    // A process with much memory takes a while to end, and has the overlay locked until then: the next try would find it so.
    await waitForExit(identity, EXIT_MS);
    await lazy?.close();
    await forgetNew();
    throw error;
  }
  const { log } = context;
  const machine = new Machine({ folder, record, qmp, log, changed: launch.changed, lazy, owner });
  if (memory) machine.noteGiven(memory.authorized_keys, machine.resets);
  if (run) {
    await letGo(launch, machine, template, launched.kernel_parameters).catch(async (error: unknown) => {
      await machine.end();
      await forgetNew();
      throw error;
    });
    if (lazy) fillMachine(machine, lazy);
  }
  return {
    machine,
    recovered:
      overlay === 'none' && (verdict.otherwise === 'set aside' || assignment.previous_failed)
        ? recoveredFrom(head.generation, 'this one', verdict)
        : null,
  };
}

/**
 * For QEMU to read as it starts; making one takes the guest half a second under emulation. In a folder that QEMU sees, so that
 * nothing holds the file when it is removed.
 */
async function offerHostKey({ runtime }: VmFolder, owner: VmUser | null): Promise<string> {
  const path = join(runtime, 'host-key');
  const { host_key, host_key_pub } = makeHostKey();
  await rm(path, { force: true });
  await using file = await open(path, 'wx', 0o600);
  await file.writeFile(host_key_pub + host_key);
  if (owner) await file.chown(owner.uid, owner.gid);
  return path;
}

async function makeFolders(folder: VmFolder, owner: VmUser | null): Promise<void> {
  await makeVmFolder(folder);
  if (owner) prepareRuntimeDir(folder.runtime, owner.uid, owner.gid);
  else await makeVmFolder({ ...folder, folder: folder.runtime });
}

function newRecord({ assignment }: Launch, image: HostImage, { vm, ssh_forward_port }: LaunchedQemu) {
  const { instance_id, vm_id, boot, epoch } = assignment;
  return {
    ...{ instance_id, vm_id, boot, epoch, ssh_forward_port },
    image: image.id,
    image_version: image.version,
    identity: vm.identity,
    released: false,
    reboots_done: 0,
    flush: null,
  };
}

/** The guest's first instruction. @throws TemplateError, the signal's reason, or why it may have run or not */
async function letGo(
  { context, assignment: { instance_id, authorized_keys }, signal }: Launch,
  machine: Machine,
  template: Template | null,
  kernel_parameters: string,
): Promise<void> {
  await machine.update({ released: true, ran: true, cold: null });
  await machine.qmp.execute('cont', undefined).catch((cause: unknown) => {
    throw new Error(`QEMU did not say that its guest runs: ${messageOf(cause)}`, { cause });
  });
  if (!template) return;
  const { resets } = machine;
  const told = { kernel_parameters, mac: macAddress(instance_id), authorized_keys };
  try {
    const undisturbed = AbortSignal.any([signal, machine.bootEnded(resets)]);
    await wakeMachine(vmSockets(machine.folder.runtime).agent, template, told, undisturbed);
  } catch (error) {
    signal.throwIfAborted();
    throw new TemplateError(template, error);
  }
  if (template.takes_files) machine.noteGiven(authorized_keys, resets);
  await machine.update({ template: { key: template.key, awake: true } });
  context.log.info({ template: template.key }, 'the guest goes on from a template');
}

/** What is below an overlay that is not whole; fails at once where the head cannot be read. */
async function serveBelow(
  { context, disk }: Launch,
  folder: VmFolder,
  image: HostImage,
  owner: VmUser | null,
): Promise<LazyOverlay> {
  await disk.load();
  const { size_bytes } = disk;
  return LazyOverlay.open({
    ...{ context, runtime_dir: folder.runtime, disk, owner, size_bytes, base_path: image.rootfs_path },
  });
}

/** Makes a machine's overlay whole, beside its guest. */
export function fillMachine(machine: Machine, lazy: LazyOverlay): void {
  lazy.fill({
    qmp: machine.qmp,
    exported: machine.exported,
    placement: machine.record,
    detached: () => machine.noteFilled(),
  });
}

interface LaunchedQemu {
  readonly vm: LaunchedVm;
  readonly ssh_forward_port: number;
  readonly kernel_parameters: string;
}

interface Parts {
  readonly owner: VmUser | null;
  readonly lazy: LazyOverlay | null;
  readonly host_key_path: string | undefined;
  /** It waits for the memory of a suspend, from a socket. */
  readonly resumes: boolean;
  /** It waits to read this file. */
  readonly memory_fd: number | undefined;
}

const LAUNCH_TRIES = 3;
const EXIT_MS = 10_000;

async function launchQemu(
  { context, assignment }: Launch,
  folder: VmFolder,
  image: HostImage,
  { owner, lazy, host_key_path, resumes, memory_fd }: Parts,
): Promise<LaunchedQemu> {
  const { instance_id, vm_id, spec } = assignment;
  for (let attempt = 1; ; attempt++) {
    const ssh_forward_port = await freeLoopbackPort();
    try {
      const machine = {
        ...{ instance_id, vm_id, accel: context.accel, hostname: spec.hostname, ...sizeOf(spec) },
        kernel_path: image.kernel_path,
        initrd_path: image.initrd_path,
        overlay_path: overlayPaths(context.paths.overlays, instance_id).overlay,
        base_path: image.rootfs_path,
        ...(lazy ? { lazy: lazy.backing } : {}),
        runtime_dir: folder.runtime,
        ssh_forward_port,
        ...(host_key_path === undefined ? {} : { host_key_path }),
        ...(resumes ? { incoming: { socket_path: incomingSocket(folder) } } : {}),
        ...(memory_fd === undefined ? {} : { incoming: 'told' as const }),
      };
      const vm = await launchVm({
        qemu_binary: context.qemu_binary,
        arguments: qemuArguments(machine),
        ...(owner ? { run_as: owner } : {}),
        ...(owner && context.jail ? { jail: { jail: context.jail, files: filesOfVm(machine) } } : {}),
        ...(memory_fd === undefined ? {} : { memory_fd }),
        runtime_dir: folder.runtime,
        log_path: folder.qemu_log,
      });
      return { vm, ssh_forward_port, kernel_parameters: kernelCommandLine(machine) };
    } catch (error) {
      // Another program may take the port between our look and QEMU's.
      const taken = error instanceof Error && /host forwarding|Address already in use/i.test(error.message);
      if (!taken || attempt === LAUNCH_TRIES) throw error;
    }
  }
}

export function sizeOf({ cpus, memory_mib }: Assignment['spec']) {
  return { cpus, memory_mib };
}

interface Saved extends AsyncDisposable {
  readonly template: Template;
  readonly file: FileHandle;
  readonly verified: Promise<void>;
}

/** @throws TemplateError */
async function openSaved({ templates }: HostContext, template: Template): Promise<Saved> {
  try {
    const { file, verified } = await templates.open(template);
    const close = async () => {
      // It is read until then.
      await verified.catch(() => undefined);
      await file.close();
    };
    return { template, file, verified, [Symbol.asyncDispose]: close };
  } catch (error) {
    throw new TemplateError(template, error);
  }
}

/** @throws TemplateError, or the signal's reason */
async function fillFrom(
  { template, verified }: Saved,
  { signal }: Launch,
  folder: VmFolder,
  qmp: QmpClient,
): Promise<void> {
  try {
    await loadTemplate(template, verified, { qmp, qemu_log: folder.qemu_log, signal });
  } catch (error) {
    signal.throwIfAborted();
    throw new TemplateError(template, error);
  }
}

async function addBitmap(qmp: QmpClient): Promise<void> {
  await qmp.execute('block-dirty-bitmap-add', {
    node: NODES.overlay,
    name: DIRTY_BITMAP,
    granularity: DIRTY_GRANULARITY,
    persistent: false,
  });
}

function limitMachine(
  context: HostContext,
  { instance_id, spec }: Assignment,
  { pid }: ProcessIdentity,
): void {
  const limits = vmLimits({ cpus: spec.cpus, memory_mib: spec.memory_mib, accel: context.accel });
  const result = limitProcess(context.cgroups, instance_id, pid, limits);
  if (!result.limited) context.log.warn({ instance_id, reason: result.reason }, 'the VM runs without limits');
}
