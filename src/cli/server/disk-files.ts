/**
 * Implements `berth disk export` and `berth disk import`, which run on the server: writes a disk to a file, and makes a
 * file a generation of a disk. qemu-img inspects and converts the files.
 */
import { constants } from 'node:fs';
import { type FileHandle, open, rm, stat } from 'node:fs/promises';
import { resolve } from 'node:path';
import { transaction } from '../../control-plane/db/pool.ts';
import { type WriterId, writeObjects } from '../../control-plane/disks/segment-store.ts';
import { currentImage } from '../../control-plane/images/store.ts';
import {
  importDisk,
  openDisk,
  requireStopped,
  requireStoredImage,
} from '../../control-plane/instances/import-disk.ts';
import { CompressPool } from '../../disk-format/compress-pool.ts';
import { loadMap } from '../../disk-format/load-map.ts';
import { type DiskFile, packDisk, writeRawDisk } from '../../disk-format/raw-disk.ts';
import { BLOCK_BYTES, diskPrefix, SegmentCorruptError } from '../../disk-format/segment-format.ts';
import { parseQcow2Header, QCOW2_HEADER_BYTES, qemuImg } from '../../host/disk/overlay-files.ts';
import { openJail } from '../../host/qemu/confinement.ts';
import { errnoOf, messageOf } from '../../shared/errors.ts';
import type { InstanceId } from '../../shared/ids.ts';
import { CommandError, EXIT } from '../command-error.ts';
import { bytes, plural } from '../table.ts';
import type { Terminal } from '../terminal.ts';
import { baseImage, findOneInstance, type ServersDisks, withDisks } from './disks.ts';

const DISK_FORMATS = ['raw', 'qcow2'] as const;
export type DiskFormat = (typeof DISK_FORMATS)[number];

export interface DiskImage {
  readonly format: DiskFormat;
  /** The size of the disk in it. */
  readonly size_bytes: number;
}

/** Refuses a qcow2 that names other files: it could name any file of this machine. @throws CommandError */
async function describeImage(path: string, format: DiskFormat | null): Promise<DiskImage> {
  let head: Buffer;
  let file_bytes: number;
  try {
    // Opening a pipe would wait for its writer.
    await using file = await open(path, constants.O_RDONLY | constants.O_NONBLOCK);
    const read = await file.read(Buffer.alloc(QCOW2_HEADER_BYTES), 0, QCOW2_HEADER_BYTES, 0);
    head = read.buffer.subarray(0, read.bytesRead);
    file_bytes = (await file.stat()).size;
  } catch (error) {
    const why =
      errnoOf(error) === 'ENOENT'
        ? `there is no file ${path}`
        : `${path} cannot be read: ${messageOf(error)}`;
    throw new CommandError(why, { exit_code: EXIT.not_found });
  }
  const header = parseQcow2Header(head);
  const found = format ?? (header ? 'qcow2' : 'raw');
  if (found === 'raw') {
    if (file_bytes === 0) throw new CommandError(`${path} is empty`);
    return { format: found, size_bytes: file_bytes };
  }
  if (!header) throw new CommandError(`${path} is not in qcow2 format; give --format raw`);
  if (header.has_backing_file || header.has_data_file) {
    throw new CommandError(
      `${path} needs another file (its backing or data file): convert it into a whole one first`,
    );
  }
  if (header.is_encrypted) throw new CommandError(`${path} is encrypted: convert it into a plain one first`);
  return { format: found, size_bytes: header.size_bytes };
}

async function toQcow2(raw_path: string, path: string, signal: AbortSignal): Promise<void> {
  const words = ['-f', 'raw', '-O', 'qcow2', resolve(raw_path), resolve(path)];
  await convert(words, { user: null, jail: null, files: { reads: [], writes: [] }, signal });
}

/** The file may attack qemu-img, and may change after its header was checked, so qemu-img runs in a jail when we are root. */
export async function toRaw(path: string, raw_path: string, signal: AbortSignal): Promise<void> {
  const [from, to] = [resolve(path), resolve(raw_path)];
  const { jail } = process.getuid?.() === 0 ? await openJail(null) : { jail: null };
  const files = { reads: [from], writes: [to] };
  await convert(['-f', 'qcow2', '-O', 'raw', from, to], { user: 'operator', jail, files, signal });
}

/** Its output is synced. Paths must be absolute: qemu-img takes `x:` at the start of a relative path for a protocol. */
async function convert(
  words: readonly string[],
  options: Omit<Parameters<typeof qemuImg>[1], 'qemu_img_binary'>,
): Promise<void> {
  try {
    await qemuImg(['convert', '-t', 'writeback', ...words], { ...options, qemu_img_binary: 'qemu-img' });
  } catch (error) {
    const stderr = error instanceof Error && 'stderr' in error ? String(error.stderr).trim() : '';
    throw new CommandError(`qemu-img: ${stderr || messageOf(error)}`);
  }
}

interface Request {
  readonly instance: string;
  readonly file: string;
  readonly terminal: Terminal;
  readonly signal: AbortSignal;
}
export interface ExportRequest extends Request {
  readonly generation: number | null;
  readonly format: DiskFormat;
}
export interface ImportRequest extends Request {
  /** Null: detected from the file's header. */
  readonly format: DiskFormat | null;
  /** Grow the disk if the file is larger. */
  readonly grow: boolean;
}

const GIB = 2 ** 30;
export async function exportDisk(request: ExportRequest): Promise<void> {
  const { file, format, terminal } = request;
  const raw_path = format === 'raw' ? file : `${file}.raw-part`;
  const target = await createFile(raw_path);
  let mine = format === 'raw';
  let done = false;
  try {
    // Created private first: qemu-img would create it readable by others.
    if (format === 'qcow2') await (await createFile(file)).close();
    mine = true;
    const written = await withDisks((context) => writeRaw(context, request, target));
    await target.close();
    if (format === 'qcow2') {
      const progress = terminal.progress(`writing ${file}`);
      await toQcow2(raw_path, file, request.signal).finally(() => progress.end());
    }
    done = true;
    const allocated = (await stat(file)).blocks * 512;
    const sentence = `${written.name}, generation ${written.generation}, is in ${file}: a disk of ${bytes(written.size_bytes)}, ${bytes(allocated)} on disk.`;
    terminal.done(sentence, { ...written, file, format, allocated_bytes: allocated }, file);
  } catch (error) {
    throw asCommandError(error);
  } finally {
    await target.close().catch(() => undefined);
    if (format === 'qcow2') await rm(raw_path, { force: true });
    if (!done && mine) await rm(file, { force: true });
  }
}

async function writeRaw(
  context: ServersDisks,
  { instance: text, generation, terminal, signal }: ExportRequest,
  target: FileHandle,
) {
  const { db, disk_keys, store, audit } = context;
  const { id, name } = await findOneInstance(db, text);
  const { instance, ...disk } = await openDisk(db, disk_keys, id, generation);
  if (disk.generation === 0)
    throw new CommandError(`${name} has no generation yet: its disk was never flushed`, {
      exit_code: EXIT.state,
    });
  const { size_bytes, org_id } = instance;
  await transaction(db, (tx) => audit.append(tx, org_id, entryOf('disk.export', id, disk.generation)));
  await using base = await openBase(context, instance.image, disk.image_version);
  const progress = terminal.progress(`exporting ${name}`);
  const pool = new CompressPool();
  try {
    const map = await loadMap({ store, keys: disk.keys, layers: disk.layers, signal });
    await writeRawDisk({
      store,
      map,
      pool,
      target,
      size_bytes,
      signal,
      keys: disk.keys,
      base: base.disk,
      onProgress: (bytes_done) => progress.say(`exporting ${name}: ${bytes(bytes_done)}`),
    });
    await context.kept.check();
  } finally {
    progress.end();
    await pool.close();
  }
  return { id, name, generation: disk.generation, size_bytes };
}

/** Imports the file as a generation of a stopped instance's disk. */
export async function importFile(request: ImportRequest): Promise<void> {
  const { file, terminal, signal } = request;
  const { format, size_bytes } = await describeImage(file, request.format);
  const raw_path = format === 'raw' ? file : `${file}.raw-part`;
  if (format === 'qcow2') await (await createFile(raw_path)).close();
  try {
    if (format === 'qcow2') {
      const progress = terminal.progress(`reading ${file}`);
      await toRaw(file, raw_path, signal).finally(() => progress.end());
    }
    await using handle = await open(raw_path, 'r');
    if (!(await isExt4(handle)))
      terminal.warn(
        `berth: ${file} is no ext4 file system, so a VM will not boot from it (a partition in it does not count)`,
      );
    const made = await withDisks((context) => store(context, request, { file: handle, size_bytes }));
    terminal.done(made.sentence, made.result, String(made.result.generation));
  } catch (error) {
    throw asCommandError(error);
  } finally {
    if (raw_path !== file) await rm(raw_path, { force: true });
  }
}

async function store(context: ServersDisks, request: ImportRequest, source: DiskFile) {
  const found = await findOneInstance(context.db, request.instance);
  const made = await writeObjects(context.db, found.id, (writer) =>
    storeAs(writer, found, context, request, source),
  );
  if (made) return made;
  throw new CommandError(`${found.name} is being deleted`, { exit_code: EXIT.state });
}

async function storeAs(
  writer: WriterId,
  { id, name }: { readonly id: InstanceId; readonly name: string },
  context: ServersDisks,
  { file, grow, terminal, signal }: ImportRequest,
  source: DiskFile,
) {
  const { db, disk_keys, config, audit } = context;
  const { instance, generation, image_version, layers, keys, own } = await openDisk(db, disk_keys, id, null);
  requireStopped(instance);
  const grows = source.size_bytes > instance.size_bytes;
  const disk_gib = grows ? Math.ceil(source.size_bytes / GIB) : instance.disk_gib;
  const size_bytes = grows ? disk_gib * GIB : instance.size_bytes;
  if (grows && !grow) {
    const more = bytes(source.size_bytes - instance.size_bytes);
    const message = `${file} is ${more} larger than the disk of ${name}, which has ${bytes(instance.size_bytes)}`;
    throw new CommandError(message, { exit_code: EXIT.state, again: '--grow' });
  }
  // Before the first boot: the version that the boot would choose, which may not be the newest build here.
  const version = image_version ?? (await currentImage(db, instance.image))?.version ?? null;
  await using base = await openBase(context, instance.image, version);
  // An early check, before packing. The import checks again.
  await requireStoredImage(db, instance.image, base.version);
  const progress = terminal.progress(`importing ${file}`);
  const pool = new CompressPool();
  const packed = await loadMap({ store: context.store, keys, layers, signal })
    .then((head) =>
      packDisk({
        store: context.store,
        pool,
        head,
        source,
        signal,
        base: base.disk,
        size_bytes,
        home: { disk_id: id, epoch: instance.disk_epoch + 1, generation: generation + 1 },
        key_prefix: diskPrefix(id),
        data_key: config.encryption ? own : null,
        onProgress: (done, total) => progress.say(`importing ${file}: ${bytes(done)} of ${bytes(total)}`),
      }),
    )
    .finally(async () => {
      progress.end();
      await pool.close();
    });
  const changed_bytes = packed.changed_blocks * BLOCK_BYTES;
  const what = { id, name, changed_bytes };
  if (packed.segments.length === 0) {
    const sentence = `The disk of ${name} already equals ${file}, as generation ${generation}.`;
    return { sentence, result: { ...what, generation } };
  }
  const imported = { id, generation, epoch: instance.disk_epoch, image_version: base.version };
  // After a failure the objects are orphans, which the sweep removes a day later.
  const after = await transaction(db, async (tx) => {
    // Unchanged blocks are those of objects that were read meanwhile.
    await context.kept.check(tx);
    const row = await importDisk(
      tx,
      config.quotas,
      { ...imported, writer, segments: packed.segments, changed_bytes, disk_gib },
      'operator',
    );
    await audit.append(tx, row.org_id, entryOf('disk.import', id, row.generation));
    return row;
  });
  const sentence = `${file} is the disk of ${name} now, as generation ${after.generation} (${plural(packed.changed_blocks, 'block')} changed). Start it: berth start ${name}`;
  return { sentence, result: { ...what, generation: after.generation } };
}

const entryOf = (action: string, target: InstanceId, generation: number) => ({
  actor: 'operator',
  action,
  target,
  ip: null,
  request_id: null,
  data: { generation },
});

async function openBase(context: ServersDisks, image: string, version: string | null) {
  const found = await baseImage(context, image, version);
  const file = await open(found.rootfs_path, 'r');
  const { size } = await file.stat();
  return {
    version: found.version,
    disk: { file, size_bytes: size } satisfies DiskFile,
    [Symbol.asyncDispose]: () => file.close(),
  };
}

/** The guest mounts the whole disk as ext4. Its superblock is at byte 1024, and its magic number 56 bytes later. */
async function isExt4(file: FileHandle): Promise<boolean> {
  const { bytesRead, buffer } = await file.read(Buffer.alloc(2), 0, 2, 1_024 + 56);
  return bytesRead === 2 && buffer.readUInt16LE() === 0xef53;
}

/** Private, because it holds a plain disk. */
async function createFile(path: string): Promise<FileHandle> {
  try {
    return await open(path, 'wx', 0o600);
  } catch (error) {
    if (errnoOf(error) === 'EEXIST')
      throw new CommandError(`${path} already exists`, { exit_code: EXIT.state });
    throw new CommandError(`${path} cannot be written: ${messageOf(error)}`);
  }
}

function asCommandError(error: unknown): unknown {
  if (error instanceof SegmentCorruptError)
    return new CommandError(`the disk is damaged: ${error.message}`, {
      exit_code: EXIT.damaged,
      next: 'berth disk verify INSTANCE, and an export of an older generation',
    });
  const code = errnoOf(error);
  if (code === 'ENOSPC' || code === 'EDQUOT') return new CommandError('the local disk is full');
  return error;
}
