/**
 * Makes, checks, grows, sets aside and removes the files of a VM's local disk, and prepares them for a launch. The
 * files are a qcow2 overlay, `<instance id>.qcow2`, and its sidecar, `<instance id>.json`, which says which head the
 * overlay last equalled.
 *
 * Invariants:
 * - Both files are a cache: losing them loses only changes after the last committed generation.
 * - An overlay is durable before its sidecar says that it equals a head.
 * - An old overlay's sidecar is removed before a new overlay replaces it.
 * - An overlay belongs to its VM's user and may have any content: its header is checked, and programs that parse it run
 *   as that user.
 */
import { execFile } from 'node:child_process';
import { constants } from 'node:fs';
import { chown, copyFile, mkdir, open, readdir, readFile, rename, rm, stat, statfs } from 'node:fs/promises';
import { isAbsolute, join } from 'node:path';
import { promisify } from 'node:util';
import type { Reason } from '../../protocol/types.ts';
import { assert } from '../../shared/assert.ts';
import { errnoOf, messageOf } from '../../shared/errors.ts';
import { type InstanceId, isId, type VmId } from '../../shared/ids.ts';
import { syncFile, syncFolder, writeFileDurably } from '../durable-file.ts';
import type { HostContext } from '../host-context.ts';
import { asVmUser, CLEAN_ENV, inJail, type Jail, type JailFiles, type VmUser } from '../qemu/confinement.ts';
import type { DiskState, VmEpoch } from './disk-state.ts';
import { type BootWrites, isLost, isSetAside, type OverlayVerdict } from './judge-overlay.ts';

export const QCOW2_HEADER_BYTES = 112;
const MAGIC = 'QFI\xfb';
const FEATURES = { dirty: 1n << 0n, corrupt: 1n << 1n, data_file: 1n << 2n, extended_l2: 1n << 4n } as const;
/** What overlays are made with, and what QEMU sets while it writes one. */
const OVERLAY_FEATURES = FEATURES.dirty | FEATURES.extended_l2;

export interface Qcow2Header {
  readonly version: number;
  /** Of the disk that it holds. */
  readonly size_bytes: number;
  readonly has_backing_file: boolean;
  readonly has_data_file: boolean;
  readonly is_encrypted: boolean;
  readonly snapshots: number;
  readonly features: bigint;
}

/**
 * The header of a qcow2 file (docs/interop/qcow2.txt in QEMU's tree; numbers are big-endian): what must be known of a file that
 * somebody else could write before a program of QEMU's opens it, which follows the names of files that a header has.
 *
 * Null: it has no such header.
 */
export function parseQcow2Header(head: Buffer): Qcow2Header | null {
  if (head.length < 72 || head.toString('latin1', 0, 4) !== MAGIC) return null;
  const version = head.readUInt32BE(4);
  // Version 2 has no features.
  if (version >= 3 && head.length < 104) return null;
  const features = version >= 3 ? head.readBigUInt64BE(72) : 0n;
  return {
    version,
    size_bytes: Number(head.readBigUInt64BE(24)),
    has_backing_file: head.readBigUInt64BE(8) !== 0n,
    has_data_file: (features & FEATURES.data_file) !== 0n,
    is_encrypted: head.readUInt32BE(32) !== 0,
    snapshots: head.readUInt32BE(60),
    features,
  };
}

/** What an overlay's header has that no QEMU of ours writes there; null: nothing. */
export function overlayProblem(header: Qcow2Header | null): string | null {
  if (!header) return 'it has no qcow2 header';
  const { version, size_bytes, features } = header;
  if (header.has_backing_file) return 'it names a backing file';
  if (header.has_data_file) return 'it names a data file';
  if (header.is_encrypted) return 'it says that it is encrypted';
  if (header.snapshots > 0) return 'it has snapshots';
  if (version !== 3) return `it is of version ${version}`;
  if ((features & FEATURES.corrupt) !== 0n) return 'QEMU has marked it as damaged';
  if ((features & ~OVERLAY_FEATURES) !== 0n) return 'it has features that no overlay has';
  if (size_bytes === 0 || size_bytes % 512 !== 0 || !Number.isSafeInteger(size_bytes))
    return 'its size is none of a disk';
  return null;
}

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

/**
 * Runs qemu-img on an untrusted file. As it parses the file, it runs as the file's user (or as root without capabilities, for
 * an operator's file), in a jail with only that file if the host has jails, and with limited time and memory.
 *
 * Rejects like execFile, with `stderr`.
 */
export async function qemuImg(args: readonly string[], options: QemuImgRun): Promise<{ stdout: string }> {
  const { user, jail, files, timeout_ms, signal } = options;
  const bounded = ['prlimit', `--as=${MEMORY_BYTES}`, '--core=0', '--', options.qemu_img_binary, ...args];
  const [file = '', ...rest] =
    jail && user !== null
      ? inJail({ jail, user, files }, bounded)
      : user === null || user === 'operator'
        ? bounded
        : [...asVmUser(user), ...bounded];
  return run(file, rest, {
    env: CLEAN_ENV,
    cwd: '/',
    killSignal: 'SIGKILL',
    ...(timeout_ms === undefined ? {} : { timeout: timeout_ms }),
    ...(signal ? { signal } : {}),
  });
}

const QEMU_IMG_MS = 30_000;
const SECTOR_BYTES = 512;

/** The local disk is full. The guest's data is safe; space must be freed. */
export class NoSpaceError extends Error {
  override name = 'NoSpaceError';
}

export interface OverlayPaths {
  readonly overlay: string;
  readonly sidecar: string;
}

/** The file's allocated size on the local disk; null: it does not exist. */
export async function allocatedBytes(overlay: string): Promise<number | null> {
  try {
    return (await stat(overlay)).blocks * SECTOR_BYTES;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return null;
    throw error;
  }
}

export function overlayPaths(folder: string, instance_id: string): OverlayPaths {
  assert(isId('inst', instance_id), 'instance_id is not an instance id');
  // With an absolute path, qemu-img does not take a colon for a protocol.
  assert(isAbsolute(folder), 'the overlays folder must be absolute');
  return { overlay: join(folder, `${instance_id}.qcow2`), sidecar: join(folder, `${instance_id}.json`) };
}

/**
 * Creates an empty overlay of `size_bytes`, owned by the VM's user, mode 0600, in place of an older one. The file names no
 * backing file, because `-blockdev` sets it. Sub-clusters of 4 KiB (`extended_l2`) make first writes cheap.
 * Rejects with {@link NoSpaceError}, or an Error with qemu-img's message.
 */
export async function createOverlay(options: {
  readonly folder: string;
  readonly instance_id: string;
  readonly size_bytes: number;
  readonly owner?: VmUser;
  readonly qemu_img_binary: string;
}): Promise<OverlayPaths> {
  assert(
    options.size_bytes > 0 && options.size_bytes % SECTOR_BYTES === 0,
    'size_bytes must be whole sectors',
  );
  const paths = overlayPaths(options.folder, options.instance_id);
  await removeOverlay(options.folder, options.instance_id);
  const create_options = 'extended_l2=on,cluster_size=128k,lazy_refcounts=off,preallocation=off';
  try {
    const handle = await open(paths.overlay, 'wx', 0o600);
    await handle.close();
    await qemuImg(
      ['create', '-q', '-f', 'qcow2', '-o', create_options, paths.overlay, String(options.size_bytes)],
      // It is empty and new, so parsing it is safe.
      {
        ...{ qemu_img_binary: options.qemu_img_binary, user: null, jail: null, timeout_ms: QEMU_IMG_MS },
        files: { reads: [], writes: [paths.overlay] },
      },
    );
    if (options.owner) await chown(paths.overlay, options.owner.uid, options.owner.gid);
    await syncFile(paths.overlay);
    await syncFolder(options.folder);
  } catch (error) {
    await rm(paths.overlay, { force: true }).catch(() => {});
    throw spaceOr(error, `cannot make the overlay of ${options.instance_id}`);
  }
  return paths;
}

/** Rejects with {@link NoSpaceError} when `bytes` do not fit on the disk. */
export async function ensureRoom(folder: string, instance_id: string, bytes: number): Promise<void> {
  const { bavail, bsize } = await statfs(folder);
  if (bavail * bsize >= bytes) return;
  throw new NoSpaceError(`cannot restore ${instance_id}: the local disk is full`);
}

/**
 * Grows an overlay that no QEMU has open to the disk's new size; the caller then syncs it. False: it has that size already. The new
 * part reads as zeroes. Rejects with {@link NoSpaceError}, or an Error with qemu-img's message. Does not open an overlay with a
 * foreign header.
 */
export async function growOverlay(options: {
  readonly folder: string;
  readonly instance_id: string;
  readonly size_bytes: number;
  /** Absent: the agent's user. */
  readonly owner?: VmUser;
  readonly jail: Jail | null;
  readonly qemu_img_binary: string;
}): Promise<boolean> {
  const { qemu_img_binary, jail, owner: user = null } = options;
  const { overlay } = overlayPaths(options.folder, options.instance_id);
  const found = await inspectOverlay(overlay);
  if (found.problem !== null) throw new Error(`${overlay} is not used: ${found.problem}`);
  assert(found.size_bytes <= options.size_bytes, 'a disk never shrinks');
  if (found.size_bytes === options.size_bytes) return false;
  const files = { reads: [], writes: [overlay] };
  try {
    await qemuImg(['resize', '-q', '-f', 'qcow2', overlay, String(options.size_bytes)], {
      ...{ qemu_img_binary, user, jail, files, timeout_ms: QEMU_IMG_MS },
    });
    return true;
  } catch (error) {
    throw spaceOr(error, `cannot grow the overlay of ${options.instance_id}`);
  }
}

export type OverlayLook =
  | { readonly size_bytes: number; readonly problem: null }
  | { readonly problem: string };

/** The virtual size of an overlay, or why QEMU's programs must not open it. Reads only its header. */
export async function inspectOverlay(path: string): Promise<OverlayLook> {
  await using file = await open(path, constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK);
  if (!(await file.stat()).isFile()) return { problem: 'it is no regular file' };
  const { buffer, bytesRead } = await file.read(Buffer.alloc(QCOW2_HEADER_BYTES), 0, QCOW2_HEADER_BYTES, 0);
  const header = parseQcow2Header(buffer.subarray(0, bytesRead));
  const problem = overlayProblem(header);
  return header && problem === null
    ? { size_bytes: header.size_bytes, problem }
    : { problem: problem ?? 'it has no qcow2 header' };
}

/** Removes the sidecar durably, then the overlay, so that no crash leaves a sidecar without its overlay. */
export async function removeOverlay(folder: string, instance_id: string): Promise<void> {
  const paths = overlayPaths(folder, instance_id);
  await rm(paths.sidecar, { force: true });
  await rm(`${paths.sidecar}.tmp`, { force: true });
  await syncFolder(folder);
  await rm(paths.overlay, { force: true });
}

/** The folder, beside the overlays, of overlays that await an operator's decision. */
const ASIDE = 'aside';

/**
 * Moves an overlay and its sidecar to a folder where nothing uses or removes them and the VM's user cannot write them.
 * Returns the overlay's new path.
 */
export async function setAsideOverlay(folder: string, instance_id: string): Promise<string> {
  const paths = overlayPaths(folder, instance_id);
  const aside = join(folder, ASIDE);
  await mkdir(aside, { recursive: true, mode: 0o700 });
  const stamp = new Date().toISOString().replaceAll(/[:.]/g, '-');
  const kept = join(aside, `${instance_id}-${stamp}.qcow2`);
  await syncFolder(folder);
  // The sidecar first, which the operator needs: a crash in between leaves the overlay in place.
  const sidecar = kept.replace(/qcow2$/, 'json');
  try {
    await copyFile(paths.sidecar, sidecar);
    await syncFile(sidecar);
    await syncFolder(aside);
  } catch (error) {
    if (errnoOf(error) !== 'ENOENT') throw error;
  }
  await rename(paths.overlay, kept);
  if (process.getuid?.() === 0) await chown(kept, 0, 0);
  await syncFolder(aside);
  await syncFolder(folder);
  await rm(paths.sidecar, { force: true });
  await syncFolder(folder);
  return kept;
}

/** The instances with an overlay here, also one that is set aside. */
export async function listOverlays(folder: string): Promise<InstanceId[]> {
  const names = [...(await readdir(folder)), ...(await readdir(join(folder, ASIDE)).catch(() => []))];
  const ids = new Set(names.map((name) => name.replace(/[.-].*/, '')));
  return [...ids].filter((id): id is InstanceId => isId('inst', id));
}

/** Deletes the set-aside overlays of a deleted instance. */
export async function removeAside(folder: string, instance_id: string): Promise<void> {
  const aside = join(folder, ASIDE);
  for (const name of await readdir(aside).catch(() => []))
    if (name.startsWith(`${instance_id}-`)) await rm(join(aside, name), { force: true });
}

function spaceOr(error: unknown, what: string): Error {
  const stderr = error instanceof Error && 'stderr' in error ? String(error.stderr).trim() : '';
  const reason = stderr || messageOf(error);
  const full =
    ['ENOSPC', 'EDQUOT'].includes(errnoOf(error) ?? '') || /No space left|quota exceeded/i.test(reason);
  return full
    ? new NoSpaceError(`${what}: the disk is full`, { cause: error })
    : new Error(`${what}: ${reason}`, { cause: error });
}

/**
 * What unallocated clusters of an overlay read as. `yes`: the image, because the overlay has all blocks of the head. `no`: the
 * head. `unverified`: the head, until a check shows that the overlay has all its blocks, because its last VM was killed.
 */
export const FILLED = ['yes', 'no', 'unverified'] as const;
export type Filled = (typeof FILLED)[number];

/**
 * `<instance id>.json` beside an overlay: the head that the overlay last equalled, and the VM that has opened it since.
 * `judge-overlay.ts` decides by it how the overlay can be used.
 */
export interface OverlaySidecar {
  /** The head that the overlay's clean blocks equal. */
  readonly generation: number;
  readonly commit_id: string;
  /** The VM that last opened the overlay, and the epoch of its placement. */
  readonly vm_id: VmId;
  readonly placement: number;
  /** The overlay equals that head, is durable, and no VM has it open. */
  readonly clean: boolean;
  /**
   * A sync of the overlay has failed. The system then forgets what it could not write, so a later sync that succeeds proves nothing:
   * the overlay is never clean again.
   */
  readonly sync_failed: boolean;
  readonly filled: Filled;
  /** The image that it is based on. A head without generations does not name it. */
  readonly image_version: string | null;
}

/** Replaces the sidecar atomically and durably. Rejects with NoSpaceError or the system error. */
export async function writeSidecar(
  folder: string,
  instance_id: string,
  sidecar: OverlaySidecar,
): Promise<void> {
  assert(isSidecar(sidecar), 'a sidecar has all of its fields');
  const { sidecar: path } = overlayPaths(folder, instance_id);
  try {
    await writeFileDurably(path, `${JSON.stringify(sidecar)}\n`);
  } catch (error) {
    throw spaceOr(error, `cannot write the sidecar of ${instance_id}`);
  }
}

/** The sidecar; `none`: no file; `damaged`: not a valid sidecar. */
export async function readSidecar(
  folder: string,
  instance_id: string,
): Promise<OverlaySidecar | 'none' | 'damaged'> {
  const { sidecar: path } = overlayPaths(folder, instance_id);
  try {
    const value: unknown = JSON.parse(await readFile(path, 'utf8'));
    return isSidecar(value) ? value : 'damaged';
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return 'none';
    if (error instanceof SyntaxError) return 'damaged';
    throw error;
  }
}

function isSidecar(value: unknown): value is OverlaySidecar {
  if (typeof value !== 'object' || value === null) return false;
  const { generation, commit_id, vm_id, placement, clean, sync_failed, filled, image_version } =
    value as Record<string, unknown>;
  const named = typeof commit_id === 'string' && typeof vm_id === 'string';
  const version = image_version === null || typeof image_version === 'string';
  const state =
    typeof clean === 'boolean' && typeof sync_failed === 'boolean' && FILLED.includes(filled as Filled);
  return isCount(generation) && isCount(placement) && named && version && state;
}

function isCount(value: unknown): boolean {
  return Number.isSafeInteger(value) && (value as number) >= 0;
}

const SET_ASIDE =
  'an overlay is ahead of the database, or damaged; it is set aside, and the disk comes from the object store';

/** Records durably that something is lost, before it is final. `set_aside`: a copy on this host has it. */
export type NoteLoss = (reason: Reason, set_aside: boolean) => Promise<void>;

export interface OverlayOf {
  readonly context: Pick<HostContext, 'paths' | 'log' | 'qemu_img_binary' | 'jail'>;
  readonly instance_id: InstanceId;
  readonly disk: DiskState;
  readonly owner: VmUser | null;
  readonly placement: VmEpoch;
  readonly writes: BootWrites;
  readonly noteLoss: NoteLoss;
}

/**
 * Prepares the overlay that a launch opens: the existing one, grown to the disk's size, or a new one.
 * Removes or sets aside an overlay that is not used. What is lost with it is recorded before.
 */
export async function prepareOverlay(launch: OverlayOf, verdict: OverlayVerdict): Promise<void> {
  if (isLost(verdict, launch.writes)) {
    const { generation } = launch.disk.head;
    await launch.noteLoss(recoveredFrom(generation, 'this one', verdict), isSetAside(verdict));
  }
  if (verdict.use !== 'none') return growOverlayOf(launch);
  if (isSetAside(verdict)) await setAside(launch);
  await makeOverlay(launch);
}

async function growOverlayOf({ context, instance_id, disk, owner, placement }: OverlayOf): Promise<void> {
  const { size_bytes } = disk.head;
  const { qemu_img_binary, jail, paths } = context;
  const grown = await growOverlay({
    ...{ folder: paths.overlays, instance_id, size_bytes, qemu_img_binary, jail },
    ...(owner ? { owner } : {}),
  });
  if (grown) await disk.syncOverlay(placement);
}

/** Creates a new overlay. */
async function makeOverlay({ context, instance_id, disk, owner }: OverlayOf): Promise<void> {
  await disk.load();
  const folder = context.paths.overlays;
  await removeOverlay(folder, instance_id);
  // The guest starts before its disk is fetched, and must not run out of room meanwhile. The stored size is a lower bound of
  // the unpacked size, so this check never refuses a disk that fits.
  let stored_bytes = 0;
  for (const { live_bytes } of disk.map.live()) stored_bytes += live_bytes;
  await ensureRoom(folder, instance_id, stored_bytes);
  await createOverlay({
    folder,
    instance_id,
    size_bytes: disk.size_bytes,
    qemu_img_binary: context.qemu_img_binary,
    ...(owner ? { owner } : {}),
  });
  disk.noteNewOverlay();
}

export function recoveredFrom(
  generation: number,
  boot: 'this one' | 'the next one',
  { otherwise }: Pick<OverlayVerdict, 'otherwise'>,
): Reason {
  const from =
    generation === 0
      ? 'the image, because nothing had been saved'
      : `generation ${generation}, the last saved one`;
  const message = `The last boot ended without saving its disk; ${boot} continues from ${from}.`;
  const aside = 'Its host keeps a copy of the disk that the database does not know: ask the operator.';
  return { code: 'recovered', message: otherwise === 'set aside' ? `${message} ${aside}` : message };
}

/** Keeps a copy for the operator: the database was set back, or failed over without its last commits, or the host's disk is damaged. */
export async function setAside({
  context,
  instance_id,
  disk,
}: Pick<OverlayOf, 'instance_id' | 'disk'> & {
  readonly context: Pick<HostContext, 'log'> & { readonly paths: Pick<HostContext['paths'], 'overlays'> };
}): Promise<void> {
  const kept = await setAsideOverlay(context.paths.overlays, instance_id);
  const { generation } = disk.head;
  context.log.error({ instance_id, kept, generation }, SET_ASIDE);
}
