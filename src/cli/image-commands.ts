/** `berth image build|add|rm`: on the server, with its image folder, object store and database. */
import { chmod, mkdir, rm, stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { pathsIn } from '../config/paths.ts';
import { transaction } from '../db/pool.ts';
import { IMAGE_ID } from '../disk-format/image-manifest.ts';
import { removeStoredImage, storeImage } from '../disk-format/image-objects.ts';
import { knownMarks } from '../disks/mark-store.ts';
import { findHostImage, type HostImage, readHostImage } from '../host/images.ts';
import { UnusableImageError } from '../host/own-image/byte-source.ts';
import { checkBoot } from '../host/own-image/check-boot.ts';
import { makeOwnImage } from '../host/own-image/make-image.ts';
import { chooseAccelerator } from '../host/vm/accelerator.ts';
import { kvmGroup, PROBE_UID } from '../host/vm/uid.ts';
import { registerCurrent } from '../images/register-image.ts';
import { removeImage } from '../images/remove-image.ts';
import { listRemoved } from '../images/store.ts';
import { buildGuestImage } from '../launch/guest-image.ts';
import { AppError } from '../lib/errors.ts';
import { createLog } from '../lib/log.ts';
import { VM_GID } from '../lib/system-ids.ts';
import { ownStore } from '../object-store/claim-store.ts';
import { openStore } from '../object-store/open-store.ts';
import { CommandError } from './command-error.ts';
import type { ServerContext } from './server-context.ts';
import type { Progress } from './terminal.ts';

const BUILT_IN = ['debian-12', 'debian-12-systemd'] as const;
const QEMU = 'qemu-system-x86_64';
const QEMU_IMG = 'qemu-img';
const PROJECT_DIR = join(import.meta.dirname, '..', '..');
export const DEFAULT_MAX_GIB = 16;
const MOST_GIB = 256;

export interface ImageWork {
  readonly progress: Progress;
  readonly signal: AbortSignal;
}

/** An image from Debian packages: one of ours. */
export async function buildImage(server: ServerContext, id: string, work: ImageWork): Promise<string> {
  if (!BUILT_IN.some((each) => each === id)) {
    throw new CommandError(
      `there is a recipe for ${BUILT_IN.join(' and ')}; others are added: berth image add`,
    );
  }
  asRoot();
  const images_dir = join(pathsIn(server.config.data_dir).images, id);
  const build_script = join(PROJECT_DIR, 'guest', 'build.sh');
  const seed_dir = join(PROJECT_DIR, '.cache', 'images', id);
  // Where no agent looks: nobody's disk is made over it before it has been checked.
  const work_dir = `${join(pathsIn(server.config.data_dir).images, '.build-')}${process.pid}`;
  await mkdir(work_dir);
  await chmod(work_dir, 0o711);
  try {
    const options = {
      build_script,
      image: id,
      images_dir,
      seed_dir,
      say: (text: string) => work.progress.say(text),
    };
    const { dir, version, fresh, publish } = await buildGuestImage(options, work_dir);
    if (fresh) await checkBuilt(server, dir, work_dir, work);
    await publish();
    const image = await readHostImage(join(images_dir, version.slice(0, 12)), true);
    if (!image) throw new CommandError(`${images_dir} has lost files; remove it and build again`);
    return await keep(server, image, work);
  } finally {
    await rm(work_dir, { recursive: true, force: true });
  }
}

async function checkBuilt(
  server: ServerContext,
  dir: string,
  work_dir: string,
  work: ImageWork,
): Promise<void> {
  const image = await readHostImage(dir, true);
  if (!image) throw new CommandError(`${dir} is not whole`);
  work.progress.say('booting it to see whether it works');
  const options = { ...(await machineOf(server, image)), image, work_dir, signal: work.signal };
  await checkBoot(options).catch((error: unknown) => {
    throw explained(error);
  });
}

/** An image of somebody's own. */
export async function addImage(
  server: ServerContext,
  [id, file]: readonly [string, string],
  max_gib: number,
  work: ImageWork,
): Promise<string> {
  if (!IMAGE_ID.test(id)) {
    throw new CommandError(`an image's name has lower-case letters, digits, hyphens and dots, not ${id}`, {
      exit_code: 2,
    });
  }
  if (id.startsWith('debian-12')) throw new CommandError(`${id} is kept for images of Berth's own`);
  if (!Number.isInteger(max_gib) || max_gib < 1 || max_gib > MOST_GIB) {
    throw new CommandError(`--max-gib takes a whole number from 1 to ${MOST_GIB}`, { exit_code: 2 });
  }
  asRoot();
  const given = resolve(file);
  await stat(given).catch(() => {
    throw new CommandError(`${given} cannot be read`);
  });
  const { images: images_dir } = pathsIn(server.config.data_dir);
  const base = await findHostImage(images_dir, 'debian-12', null);
  if (!base) throw new CommandError('the image debian-12 is not on this host', { next: 'npm start' });
  const machine = await machineOf(server, base);
  const say = (text: string) => work.progress.say(text);
  const options = { id, given, images_dir, base, max_bytes: max_gib * 2 ** 30, say, signal: work.signal };
  const image = await makeOwnImage({ ...machine, ...options }).catch((error: unknown) => {
    throw explained(error);
  });
  return keep(server, image, work);
}

/** Takes versions out of use; objects and the folder on this host go at once, those of other hosts soon. */
export async function removeImages(
  server: ServerContext,
  id: string,
  version: string | null,
): Promise<string> {
  const { config, db } = server;
  const versions = await transaction(db, (tx) => removeImage(tx, id, version)).catch((error: unknown) => {
    throw error instanceof AppError ? new CommandError(error.message) : error;
  });
  const paths = pathsIn(config.data_dir);
  const settings = { s3: config.s3, folder: paths.objects, log: createLog('cli', 'warn') };
  const store = ownStore(knownMarks(db), await openStore(settings));
  // Those of before too: a removal may have been interrupted.
  for (const each of await listRemoved(db, id)) {
    await removeStoredImage(store, id, each);
    const here = await findHostImage(paths.images, id, each);
    if (here) await rm(here.folder, { recursive: true, force: true });
  }
  if (version === null) await rm(join(paths.images, id), { recursive: true, force: true });
  return `${id}: removed ${versions.map((each) => each.slice(0, 12)).join(', ')}\n`;
}

/** Into the object store, then known to all. */
async function keep(
  { config, db }: ServerContext,
  image: HostImage,
  { progress, signal }: ImageWork,
): Promise<string> {
  const { id, version, manifest, size_bytes } = image;
  const { objects } = pathsIn(config.data_dir);
  const settings = { s3: config.s3, folder: objects, log: createLog('cli', 'warn') };
  const store = ownStore(knownMarks(db), await openStore(settings));
  const { index_sha256, stored_bytes } = await storeImage(store, image.folder, manifest, {
    signal,
    progress: (done, total) => progress.say(`into the object store: ${Math.floor((100 * done) / total)} %`),
  });
  const row = { id, version, recipe: manifest.version, size_bytes, newest: true, index_sha256, stored_bytes };
  await transaction(db, (tx) => registerCurrent(tx, row));
  progress.end();
  const mib = (bytes: number) => Math.ceil(bytes / 2 ** 20);
  return `${id} ${version.slice(0, 12)}: ${mib(size_bytes)} MiB, ${mib(stored_bytes)} MiB stored. Use it: berth create NAME --image ${id}\n`;
}

async function machineOf({ config }: ServerContext, { kernel_path, initrd_path }: HostImage) {
  const run_as = { uid: PROBE_UID, gid: kvmGroup() ?? VM_GID };
  const cache_path = join(pathsIn(config.data_dir).run, 'accelerator.json');
  const { accel } = await chooseAccelerator({
    ...{ setting: config.accel, qemu_binary: QEMU, kernel_path, initrd_path, cache_path, run_as },
  });
  const gid = accel === 'kvm' ? run_as.gid : VM_GID;
  return { accel, qemu_binary: QEMU, qemu_img_binary: QEMU_IMG, run_as: { uid: PROBE_UID, gid } };
}

function asRoot(): void {
  if (process.getuid?.() === 0) return;
  throw new CommandError('images are made by root', { next: 'the same with sudo', exit_code: 2 });
}

function explained(error: unknown): unknown {
  return error instanceof UnusableImageError
    ? new CommandError(`it cannot be an image: ${error.message}`)
    : error;
}
