/**
 * Launches a machine for an assignment, up to the first instruction of its guest: starts QEMU, paused, and loads saved
 * memory into it, if there is any.
 *
 *   head, overlay judged ─▶ image ─▶ overlay ready ─▶ export below it ─▶ QEMU, paused ─▶ record written
 *     ─▶ memory loaded, if any ─▶ dirty bitmap ─▶ sidecar "not clean" ─▶ memory consumed ─▶ record says "ran" ─▶ cont
 *
 * Invariants:
 * - The record is written before the guest runs. The bitmap exists before the guest can write.
 * - A launch that fails leaves no process, and no overlay that it made.
 * - Where there is saved memory, no guest runs before this boot has consumed the memory, whether it uses the memory or
 *   not.
 */

import { type FileHandle, open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { consumeMemory, MemoryConsumedError, readMemory } from '../../disk-format/memory-format.ts';
import type { Assignment, DiskHead, MemoryRef, Reason } from '../../protocol/types.ts';
import { messageOf } from '../../shared/errors.ts';
import { DIRTY_BITMAP, DIRTY_GRANULARITY } from '../disk/dirty-blocks.ts';
import type { DiskState } from '../disk/disk-state.ts';
import { type OverlayVerdict, writesOf } from '../disk/judge-overlay.ts';
import { LazyOverlay } from '../disk/lazy-overlay.ts';
import { type NoteLoss, overlayPaths, prepareOverlay, removeOverlay } from '../disk/overlay-files.ts';
import { type HostContext, networkKind, vmOwner } from '../host-context.ts';
import type { LocalImage } from '../images/host-images.ts';
import { guestAddress, type VmNetwork } from '../network/addresses.ts';
import { onTap, routeToGuest, TAP_FD } from '../network/guest-network.ts';
import { forgetConnections } from '../network/hold-connections.ts';
import {
  filesOfVm,
  limitDisk,
  limitProcess,
  prepareRuntimeDir,
  type VmUser,
  vmLimits,
} from '../qemu/confinement.ts';
import { differenceOf, hardwareTraits, loadStream, qemuVersion } from '../qemu/migration.ts';
import {
  kernelCommandLine,
  macAddress,
  NODES,
  qemuArguments,
  type VmSpec,
  vmSockets,
} from '../qemu/qemu-command.ts';
import {
  freeLoopbackPort,
  killProcess,
  type LaunchedVm,
  launchVm,
  type ProcessIdentity,
  waitForExit,
} from '../qemu/qemu-process.ts';
import type { QmpClient } from '../qemu/qmp-client.ts';
import { Machine } from './machine.ts';
import { makeVmFolder, type VmFolder, type VmRecord, vmFolder, writeRecord } from './record.ts';
import { loadTemplate, makeHostKey, type Template, wakeMachine } from './template-files.ts';

const EXIT_MS = 10_000;

export interface Launch {
  readonly context: HostContext;
  readonly assignment: Assignment;
  readonly disk: DiskState;
  /** A guest of this boot has run before. */
  readonly ran: boolean;
  /** The name as which this boot consumes its saved memory. */
  readonly consumer: string;
  readonly noteLoss: NoteLoss;
  readonly changed: () => void;
  readonly signal: AbortSignal;
}

export interface How {
  /** False: the guest never runs, the machine only opens the disk. */
  readonly run: boolean;
  /** The memory that the guest resumes from; without it the guest boots. */
  readonly memory?: MemoryRef;
  /** The guest may start from a template of this host. */
  readonly fast?: boolean;
  /** Why the guest must boot; recorded until it runs. */
  readonly cold?: Reason | null;
}

/** This boot may have consumed its memory, and its guest has not run. Only another launch of the same boot can use the memory. */
export class MayBeConsumedError extends Error {
  override name = 'MayBeConsumedError';
}

/** QEMU did not confirm that its guest runs: it may. */
export class GuestMayRunError extends Error {
  override name = 'GuestMayRunError';
}

/** The disk of a launch: what there is, and what the guest will see. */
interface FoundDisk {
  readonly head: DiskHead;
  readonly verdict: OverlayVerdict;
  readonly image: LocalImage;
}

/** A paused QEMU on its disk. */
interface PausedVm extends FoundDisk, LaunchedQemu {
  readonly owner: VmUser | null;
  readonly lazy: LazyOverlay | null;
  readonly template_memory: TemplateMemory | null;
}

/**
 * @throws MemoryUnfitError, MemoryDamagedError, MemoryConsumedError, MayBeConsumedError, StreamRefusedError, TemplateError,
 *   GuestMayRunError, or what failed
 */
export async function launchMachine(launch: Launch, how: How): Promise<Machine> {
  const { context, assignment } = launch;
  if (how.run) context.egress.requireEnforced(assignment);
  const owner = vmOwner(context, assignment.spec.slot);
  const folder = vmFolder(context.paths.vms, assignment.instance_id);
  const found = await findDisk(launch, how);
  const { image, verdict } = found;
  const { run, memory, fast } = how;
  const template = run && fast ? await context.templates.find({ image, ...sizeOf(assignment.spec) }) : null;
  await makeFolders(folder, owner);
  // It only saves what the overlay holds.
  if (!run && verdict.use !== 'unsaved') throw new Error('the overlay is gone since it was inspected');
  const { disk, noteLoss } = launch;
  const { instance_id } = assignment;
  // A boot without its memory may have a disk that another start wrote to.
  const writes = writesOf(memory ? assignment : { ...assignment, resume: null }, launch.ran);
  await prepareOverlay(
    { context, instance_id, disk, owner, placement: assignment, writes, noteLoss },
    verdict,
  );
  await using template_memory = template && (await openTemplateMemory(context, template));
  const lazy = launch.disk.filled === 'yes' ? null : await serveBelow(launch, image, owner);
  const resumes = memory !== undefined;
  const launched = await launchQemu(launch, {
    ...{ folder, image, owner, lazy, resumes, memory_fd: template_memory?.file.fd },
    offers_host_key: run && !resumes && !template_memory,
  }).catch(async (error: unknown) => {
    await lazy?.close();
    throw error;
  });
  const paused = { ...found, ...launched, owner, lazy, template_memory };
  const record = await makeReady(launch, how, paused);
  const machine = new Machine({
    ...{ folder, record, qmp: launched.vm.qmp, log: context.log, changed: launch.changed, lazy, owner },
    guest_network: context.network,
  });
  if (memory) machine.noteGiven(memory.authorized_keys, machine.resets);
  if (run) {
    const goes = consumeFirst(launch, how).then(() =>
      letGo(launch, how, machine, template, launched.kernel_parameters),
    );
    await goes.catch(async (error: unknown) => {
      await machine.end();
      if (!(error instanceof GuestMayRunError)) await removeNewOverlay(launch, verdict);
      throw error;
    });
    if (lazy) fillMachine(machine, lazy);
  }
  return machine;
}

/** Judges the overlay against the head, and finds the disk's image. */
async function findDisk(launch: Launch, { memory }: How): Promise<FoundDisk> {
  const { context, assignment, disk, signal } = launch;
  const { epoch, spec } = assignment;
  const head = await disk.headFor(epoch);
  const verdict = usableWith(memory, await disk.judgeOverlay(assignment));
  // Before the first generation only this host may know the version: the disk booted while no image was registered.
  const version = head.image_version ?? (verdict.use === 'none' ? null : disk.overlay_image);
  disk.setOverlayImage(version);
  if (verdict.use === 'unsaved') {
    // A killed QEMU's writes may be in the host's page cache only. They are committed next, so they must be as durable.
    await disk.syncOverlay(assignment);
    // This placement is responsible for the overlay's content from here on, even if a later step fails.
    await disk.markDirty(assignment);
  }
  const image = await context.images.forDisk(spec.image, version, signal);
  disk.setOverlayImage(image.version);
  if (memory)
    checkFit({ context, spec }, memory, { generation: head.generation, image_version: image.version });
  return { head, verdict, image };
}

/** The head alone matches the memory. What an overlay claims beyond it was written by no guest: the memory is not consumed. */
function usableWith(memory: MemoryRef | undefined, verdict: OverlayVerdict): OverlayVerdict {
  return memory && verdict.use === 'unsaved' ? { ...verdict, use: 'none' } : verdict;
}

/** Writes the record and prepares the paused QEMU for its first instruction. A failure leaves no process. */
async function makeReady(launch: Launch, how: How, paused: PausedVm): Promise<VmRecord> {
  const { context, assignment, disk, signal } = launch;
  const { vm, lazy, verdict, template_memory } = paused;
  const { qmp, identity } = vm;
  const folder = vmFolder(context.paths.vms, assignment.instance_id);
  const record = newRecord(launch, how, paused);
  try {
    await writeRecord(folder, record);
    if (how.memory) await loadMemory({ context, disk, qmp, folder, signal }, how.memory);
    if (template_memory)
      await loadTemplateMemory(template_memory, { qmp, qemu_log: folder.qemu_log, signal });
    if (verdict.use !== 'unsaved') await addBitmap(qmp);
    await limitDisk(qmp);
    signal.throwIfAborted();
    context.lease.require();
    if (how.run || verdict.use !== 'clean') await disk.markDirty(assignment);
    return record;
  } catch (error) {
    qmp.close();
    killProcess(identity, 'SIGKILL');
    // A process with much memory ends slowly, and locks the overlay until then: the next try would fail.
    await waitForExit(identity, EXIT_MS);
    await lazy?.close();
    await removeNewOverlay(launch, verdict);
    throw error;
  }
}

function newRecord(
  { assignment, ran, consumer }: Launch,
  { memory, cold }: How,
  { head, verdict, image, vm, network, lazy, template_memory }: PausedVm,
): VmRecord {
  const { instance_id, vm_id, boot, epoch } = assignment;
  return {
    ...{ instance_id, vm_id, boot, epoch, network, ran },
    image: image.id,
    image_version: image.version,
    identity: vm.identity,
    released: false,
    reboots_done: 0,
    flush: null,
    full_compare: verdict.use === 'unsaved',
    counts_from: head.commit_id,
    frozen: memory?.frozen === true,
    lazy: lazy && { size_bytes: head.size_bytes, base_path: image.rootfs_path },
    resuming: memory !== undefined,
    consumer: assignment.resume && consumer,
    template: template_memory && { key: template_memory.template.key, awake: false },
    cold: cold ?? null,
  };
}

/** A new overlay whose guest never ran holds nothing. */
async function removeNewOverlay({ context, assignment }: Launch, { use }: OverlayVerdict): Promise<void> {
  if (use === 'none') await removeOverlay(context.paths.overlays, assignment.instance_id);
}

/**
 * Consumes this boot's saved memory, after all else that may fail: a failure leaves it to the next start. A guest that boots instead
 * makes it stale, too, whoever has consumed it. @throws MemoryConsumedError, MayBeConsumedError
 */
async function consumeFirst(
  { context, assignment: { resume }, ran, consumer, signal }: Launch,
  { memory }: How,
): Promise<void> {
  if (!resume || ran) return;
  await consumeMemory(context.store, resume.key, consumer, signal).catch((error: unknown) => {
    if (!(error instanceof MemoryConsumedError))
      throw new MayBeConsumedError(messageOf(error), { cause: error });
    if (memory) throw error;
  });
  context.lease.require();
}

/** Runs the guest's first instruction. @throws MayBeConsumedError, GuestMayRunError, TemplateError, the signal's reason */
async function letGo(
  { context, assignment: { instance_id, authorized_keys, resume }, noteLoss, signal }: Launch,
  { cold }: How,
  machine: Machine,
  template: Template | null,
  kernel_parameters: string,
): Promise<void> {
  try {
    if (cold && resume) await noteLoss(cold, false);
    await machine.update({ released: true, ran: true, cold: null });
  } catch (error) {
    throw resume ? new MayBeConsumedError(messageOf(error), { cause: error }) : error;
  }
  await machine.qmp.execute('cont', undefined).catch((cause: unknown) => {
    throw new GuestMayRunError(`QEMU did not confirm that its guest runs: ${messageOf(cause)}`, { cause });
  });
  if (!template) return;
  const { resets } = machine;
  const told = { kernel_parameters, mac: macAddress(instance_id), authorized_keys };
  try {
    const undisturbed = AbortSignal.any([signal, machine.bootEnded(resets)]);
    await wakeMachine(vmSockets(machine.folder.runtime).agent, told, undisturbed);
  } catch (error) {
    signal.throwIfAborted();
    throw new TemplateError(template, error);
  }
  machine.noteGiven(authorized_keys, resets);
  await machine.update({ template: { key: template.key, awake: true } });
  context.log.info({ template: template.key }, 'the guest starts from a template');
}

/** The export below an overlay that is not whole. Fails at once if the head cannot be read. */
async function serveBelow(
  { context, assignment, disk }: Launch,
  image: LocalImage,
  owner: VmUser | null,
): Promise<LazyOverlay> {
  await disk.load();
  const { runtime: runtime_dir } = vmFolder(context.paths.vms, assignment.instance_id);
  const { size_bytes } = disk;
  return LazyOverlay.open({ context, runtime_dir, disk, owner, size_bytes, base_path: image.rootfs_path });
}

/** Fills a machine's overlay beside its guest. */
export function fillMachine(machine: Machine, lazy: LazyOverlay): void {
  lazy.fill({
    qmp: machine.qmp,
    exported: machine.exported,
    placement: machine.record,
    detached: () => machine.noteFilled(),
  });
}

async function addBitmap(qmp: QmpClient): Promise<void> {
  await qmp.execute('block-dirty-bitmap-add', {
    node: NODES.overlay,
    name: DIRTY_BITMAP,
    granularity: DIRTY_GRANULARITY,
    persistent: false,
  });
}

/** Less than the time that a start may take. */
const LOAD_MS = 480_000;

/** The memory is of other hardware, or of another generation of the disk. */
export class MemoryUnfitError extends Error {
  override name = 'MemoryUnfitError';
}

export interface VmSize {
  readonly cpus: number;
  readonly memory_mib: number;
}

/** The QEMU that the memory is loaded into. */
export interface Inlet {
  readonly context: HostContext;
  readonly disk: DiskState;
  readonly qmp: QmpClient;
  readonly folder: VmFolder;
  readonly signal: AbortSignal;
}

/** The checks that need no QEMU. @throws MemoryUnfitError */
function checkFit(
  { context, spec }: Pick<Inlet, 'context'> & { readonly spec: VmSize },
  memory: MemoryRef,
  disk: { readonly generation: number; readonly image_version: string },
): void {
  const { cpus, memory_mib } = spec;
  const { image_version } = disk;
  const difference = differenceOf(
    memory.traits,
    hardwareTraits({ cpus, memory_mib, accel: context.accel, image_version, network: networkKind(context) }),
  );
  if (difference) throw new MemoryUnfitError(difference);
  if (disk.generation !== memory.generation)
    throw new MemoryUnfitError(`its disk is at generation ${disk.generation}, not ${memory.generation}`);
}

function incomingSocket({ runtime }: VmFolder): string {
  return vmSockets(runtime).incoming;
}

/** Loads saved memory into a QEMU that waits for it. The guest is paused afterwards, as it was when it was saved. */
async function loadMemory({ context, disk, qmp, folder, signal }: Inlet, memory: MemoryRef): Promise<void> {
  const difference = differenceOf(memory.traits, { qemu: await qemuVersion(qmp) });
  if (difference) throw new MemoryUnfitError(difference);
  const { key, parts, key_id, salt, epoch, generation } = memory;
  const encryption = { key_id, salt: Buffer.from(salt, 'base64') };
  const place = { disk_id: disk.instance_id, epoch, generation };
  const inlet = {
    path: incomingSocket(folder),
    qemu_log: folder.qemu_log,
    timeout_ms: LOAD_MS,
    signal,
  };
  await loadStream(qmp, inlet, (within) =>
    readMemory({ key, parts, encryption }, { store: context.store, place, keys: disk.keys, signal: within }),
  );
}

const LAUNCH_TRIES = 3;

export interface LaunchedQemu {
  readonly vm: LaunchedVm;
  readonly network: VmNetwork;
  readonly kernel_parameters: string;
}

export interface QemuParts {
  readonly folder: VmFolder;
  readonly image: LocalImage;
  readonly owner: VmUser | null;
  readonly lazy: LazyOverlay | null;
  /** The guest boots: QEMU passes it a host key. */
  readonly offers_host_key: boolean;
  /** QEMU waits for a suspended VM's memory, from a socket. */
  readonly resumes: boolean;
  /** QEMU waits for the command to read this file. */
  readonly memory_fd: number | undefined;
}

type Placed = { readonly context: HostContext; readonly assignment: Assignment };

/** Starts a VM's QEMU, paused, as the VM's own user, in its jail and control group. */
async function launchQemu(placed: Placed, parts: QemuParts): Promise<LaunchedQemu> {
  const host_key_path = parts.offers_host_key ? await offerHostKey(parts) : undefined;
  try {
    const launched = await launchOnFreePort(placed, parts, host_key_path);
    // Before it gets a memory: memory that a process has already stays in the group that it was charged to.
    limitMachine(placed, launched.vm.identity);
    return launched;
  } finally {
    if (host_key_path) await rm(host_key_path, { force: true });
  }
}

/** Another program may take the port between our look and QEMU's. */
async function launchOnFreePort(
  placed: Placed,
  parts: QemuParts,
  host_key_path: string | undefined,
): Promise<LaunchedQemu> {
  for (let attempt = 1; ; attempt++) {
    try {
      return await launchOnce(placed, parts, host_key_path);
    } catch (error) {
      const taken = error instanceof Error && /host forwarding|Address already in use/i.test(error.message);
      if (!taken || attempt === LAUNCH_TRIES) throw error;
    }
  }
}

async function launchOnce(
  { context, assignment: { instance_id, vm_id, spec } }: Placed,
  { folder, image, owner, lazy, resumes, memory_fd }: QemuParts,
  host_key_path: string | undefined,
): Promise<LaunchedQemu> {
  const tap = owner && context.network;
  const network: VmNetwork = tap
    ? { kind: 'tap', address: guestAddress(spec.slot) }
    : { kind: 'user', ssh_forward_port: await freeLoopbackPort() };
  const machine: VmSpec = {
    ...{ instance_id, vm_id, accel: context.accel, hostname: spec.hostname, ...sizeOf(spec) },
    kernel_path: image.kernel_path,
    initrd_path: image.initrd_path,
    overlay_path: overlayPaths(context.paths.overlays, instance_id).overlay,
    base_path: image.rootfs_path,
    ...(lazy ? { lazy: lazy.backing } : {}),
    runtime_dir: folder.runtime,
    network: network.kind === 'tap' ? { kind: 'tap', fd: TAP_FD } : { ...network, restricted: false },
    ...(host_key_path === undefined ? {} : { host_key_path }),
    ...(resumes ? { incoming: { socket_path: incomingSocket(folder) } } : {}),
    ...(memory_fd === undefined ? {} : { incoming: 'told' as const }),
  };
  if (tap) {
    // The agent removes them too, but later, and not while it was down.
    const forgotten = forgetConnections(tap, spec.slot).catch(() => undefined);
    await Promise.all([routeToGuest(tap, spec.slot), forgotten]);
  }
  const vm = await launchVm({
    qemu_binary: context.qemu_binary,
    arguments: qemuArguments(machine),
    ...(owner ? { run_as: owner } : {}),
    ...(owner && context.jail ? { jail: { jail: context.jail, files: filesOfVm(machine) } } : {}),
    ...(tap
      ? { onTap: (command) => onTap(tap, { slot: spec.slot, mac: macAddress(instance_id) }, command) }
      : {}),
    ...(memory_fd === undefined ? {} : { memory_fd }),
    runtime_dir: folder.runtime,
    log_path: folder.qemu_log,
  });
  return { vm, network, kernel_parameters: kernelCommandLine(machine) };
}

/**
 * A host key that QEMU reads as it starts: under emulation a guest needs half a second to generate one. The file lies in a
 * folder that QEMU's jail shows, so that nothing holds it when it is removed.
 */
async function offerHostKey({ folder: { runtime }, owner }: QemuParts): Promise<string> {
  const path = join(runtime, 'host-key');
  const { host_key, host_key_pub } = makeHostKey();
  await rm(path, { force: true });
  await using file = await open(path, 'wx', 0o600);
  await file.writeFile(host_key_pub + host_key);
  if (owner) await file.chown(owner.uid, owner.gid);
  return path;
}

export async function makeFolders(folder: VmFolder, owner: VmUser | null): Promise<void> {
  await makeVmFolder(folder);
  if (owner) prepareRuntimeDir(folder.runtime, owner.uid, owner.gid);
  else await makeVmFolder({ ...folder, folder: folder.runtime });
}

export function sizeOf({ cpus, memory_mib }: Assignment['spec']) {
  return { cpus, memory_mib };
}

function limitMachine(
  { context, assignment: { instance_id, spec } }: Placed,
  { pid }: ProcessIdentity,
): void {
  const limits = vmLimits({ cpus: spec.cpus, memory_mib: spec.memory_mib, accel: context.accel });
  const result = limitProcess(context.cgroups, instance_id, pid, limits);
  if (!result.limited) context.log.warn({ instance_id, reason: result.reason }, 'the VM runs without limits');
}

/** The template failed and its machine is gone: boot without it. */
export class TemplateError extends Error {
  override name = 'TemplateError';
  readonly template: Template;

  constructor(template: Template, cause: unknown) {
    super(messageOf(cause), { cause });
    this.template = template;
  }
}

/** The memory of a template, opened for a launch. */
export interface TemplateMemory extends AsyncDisposable {
  readonly template: Template;
  readonly file: FileHandle;
  readonly verified: Promise<void>;
}

/** @throws TemplateError */
async function openTemplateMemory({ templates }: HostContext, template: Template): Promise<TemplateMemory> {
  try {
    const { file, verified } = await templates.open(template);
    const close = async () => {
      // The verification reads the file.
      await verified.catch(() => undefined);
      await file.close();
    };
    return { template, file, verified, [Symbol.asyncDispose]: close };
  } catch (error) {
    throw new TemplateError(template, error);
  }
}

/** @throws TemplateError, or the signal's reason */
async function loadTemplateMemory(
  { template, verified }: TemplateMemory,
  into: { readonly qmp: QmpClient; readonly qemu_log: string; readonly signal: AbortSignal },
): Promise<void> {
  try {
    await loadTemplate(template, verified, into);
  } catch (error) {
    into.signal.throwIfAborted();
    throw new TemplateError(template, error);
  }
}
