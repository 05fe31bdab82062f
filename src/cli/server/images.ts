/**
 * Implements `berth image build|add|rm`, which run on the server. A lock lets one such command run at a time
 * ({@link alone}). If a command was killed, the same command completes its work, and the next image command removes its
 * work folder.
 */
import { access, chmod, mkdir, readdir, rm, stat } from 'node:fs/promises';
import { join, resolve } from 'node:path';
import { pathsIn } from '../../config/paths.ts';
import { transaction } from '../../control-plane/db/pool.ts';
import { knownMarks } from '../../control-plane/disks/store.ts';
import { registerCurrent, removeImage } from '../../control-plane/images/register-image.ts';
import { BUSY, listRemoved, listVersions, withImageLock } from '../../control-plane/images/store.ts';
import { IMAGE_ID, removeStoredImage, storeImage } from '../../disk-format/image-objects.ts';
import { findHostImage, type LocalImage, readHostImage } from '../../host/images/host-images.ts';
import { checkBoot } from '../../host/images/image-machines.ts';
import { makeOwnImage } from '../../host/images/make-image.ts';
import { UnusableImageError } from '../../host/images/read-tar.ts';
import { chooseAccelerator } from '../../host/qemu/accelerator.ts';
import { kvmGroup, openJail, PROBE_UID } from '../../host/qemu/confinement.ts';
import { buildGuestImage, RECIPE_STEPS } from '../../launcher/guest-image.ts';
import { openStore } from '../../object-store/open-store.ts';
import { ownStore } from '../../object-store/store-mark.ts';
import { AppError } from '../../shared/errors.ts';
import { createLog } from '../../shared/log.ts';
import { VM_GID } from '../../shared/system-ids.ts';
import { CommandError } from '../command-error.ts';
import { bar } from '../table.ts';
import type { Terminal } from '../terminal.ts';
import { noteOperator, type ServerContext } from './context.ts';

/** The steps of a long command: a bar on a terminal, else a line on stderr for each. */
class StepProgress {
  readonly #terminal: Terminal;
  readonly #subject: string;
  readonly #steps: number;
  readonly #line: ReturnType<Terminal['progress']>;
  #now = 0;

  constructor(terminal: Terminal, subject: string, steps: number) {
    this.#terminal = terminal;
    this.#subject = subject;
    this.#steps = steps;
    this.#line = terminal.progress(subject);
  }

  /** @param step from 1 @param part the done part of it, from 0 to 1 */
  at(step: number, what: string, part = 0): void {
    const place = `${step}/${this.#steps}`;
    const shown = bar((step - 1 + part) / this.#steps);
    if (this.#line.shown) this.#line.say(`${this.#subject} ${shown} ${place} ${what}`);
    else if (step > this.#now) this.#terminal.warn(`${this.#subject}: step ${place} ${what}`);
    this.#now = Math.max(step, this.#now);
  }

  end(): void {
    this.#line.end();
  }
}

const BUILT_IN = ['debian-12', 'debian-12-systemd'] as const;
const QEMU = 'qemu-system-x86_64';
const QEMU_IMG = 'qemu-img';
const PROJECT_DIR = join(import.meta.dirname, '..', '..', '..');
export const DEFAULT_MAX_GIB = 16;
const MOST_GIB = 256;

/** A work folder in the images' folder, which agents ignore. */
const WORK_FOLDER = /^\.(build|add)-/;
/** Steps of adding an image, after those of `makeOwnImage`. */
const ADD_STEPS = [/^(unpacking|reading)/, /^writing/, /^putting/, /^checksums/, /^booting/] as const;

export interface ImageWork {
  readonly terminal: Terminal;
  readonly signal: AbortSignal;
}

/** Takes the image lock, removes the work folders of killed commands, and provides a new one. */
async function alone<T>(server: ServerContext, work: () => Promise<T>): Promise<T> {
  const outcome = await withImageLock(server.db, async () => {
    const { images } = pathsIn(server.config.data_dir);
    for (const name of await readdir(images)) {
      if (WORK_FOLDER.test(name)) await rm(join(images, name), { recursive: true, force: true });
    }
    return work();
  });
  if (outcome === BUSY) throw new CommandError('another berth image command is running; wait for it');
  return outcome;
}

/** Builds one of Berth's images from Debian packages. */
export async function buildImage(server: ServerContext, id: string, work: ImageWork): Promise<string> {
  if (!BUILT_IN.some((each) => each === id)) {
    throw new CommandError(
      `there is a recipe for ${BUILT_IN.join(' and ')}; others are added: berth image add`,
    );
  }
  asRoot();
  const steps = new StepProgress(work.terminal, `image ${id}`, RECIPE_STEPS + 2);
  return alone(server, () => build(server, id, { ...work, steps })).finally(() => steps.end());
}

interface Work extends ImageWork {
  readonly steps: StepProgress;
}

async function build(server: ServerContext, id: string, work: Work): Promise<string> {
  const images_dir = join(pathsIn(server.config.data_dir).images, id);
  const build_script = join(PROJECT_DIR, 'guest', 'build.sh');
  const seed_dir = join(PROJECT_DIR, '.cache', 'images', id);
  // Outside the agents' view: no disk may use it before it has been checked.
  const work_dir = `${join(pathsIn(server.config.data_dir).images, '.build-')}${process.pid}`;
  await mkdir(work_dir);
  await chmod(work_dir, 0o711);
  try {
    const options = {
      build_script,
      image: id,
      images_dir,
      seed_dir,
      say: () => undefined,
      signal: work.signal,
      onStep: (step: number, what: string) => work.steps.at(step, what),
    };
    const { dir, version, fresh, publish } = await buildGuestImage(options, work_dir);
    if (fresh) await checkBuilt(server, dir, work_dir, work);
    await publish();
    const image = await readHostImage(join(images_dir, version.slice(0, 12)), true);
    if (!image)
      throw new CommandError(`files are missing in ${images_dir}; remove that folder and build again`);
    return await keep(server, image, 'image.build', RECIPE_STEPS + 2, work);
  } finally {
    await rm(work_dir, { recursive: true, force: true });
  }
}

async function checkBuilt(server: ServerContext, dir: string, work_dir: string, work: Work): Promise<void> {
  const image = await readHostImage(dir, true);
  if (!image) throw new CommandError(`${dir} is incomplete`);
  work.steps.at(RECIPE_STEPS + 1, 'booting it to see whether it works');
  const options = { ...(await machineOf(server, image)), image, work_dir, signal: work.signal };
  await checkBoot(options).catch((error: unknown) => {
    throw explained(error);
  });
}

/** Adds a user's image. */
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
  if (id.startsWith('debian-12'))
    throw new CommandError(`names that begin with debian-12 are reserved for Berth's own images`);
  if (!Number.isInteger(max_gib) || max_gib < 1 || max_gib > MOST_GIB) {
    throw new CommandError(`--max-gib takes a whole number from 1 to ${MOST_GIB}`, { exit_code: 2 });
  }
  asRoot();
  const given = resolve(file);
  await stat(given).catch(() => {
    throw new CommandError(`${given} cannot be read`);
  });
  const steps = new StepProgress(work.terminal, `image ${id}`, ADD_STEPS.length + 1);
  return alone(server, () => add(server, { id, given, max_gib }, { ...work, steps })).finally(() =>
    steps.end(),
  );
}

interface Given {
  readonly id: string;
  readonly given: string;
  readonly max_gib: number;
}

async function add(server: ServerContext, { id, given, max_gib }: Given, work: Work): Promise<string> {
  const { images: images_dir } = pathsIn(server.config.data_dir);
  const base = await findHostImage(images_dir, 'debian-12', null);
  if (!base) throw new CommandError('the image debian-12 is not on this host', { next: 'npm start' });
  const machine = await machineOf(server, base);
  const say = (text: string) => {
    const step = ADD_STEPS.findIndex((words) => words.test(text));
    if (step !== -1) work.steps.at(step + 1, text);
  };
  const options = { id, given, images_dir, base, max_bytes: max_gib * 2 ** 30, say, signal: work.signal };
  const image = await makeOwnImage({ ...machine, ...options }).catch((error: unknown) => {
    throw explained(error);
  });
  return keep(server, image, 'image.add', ADD_STEPS.length + 1, work);
}

/**
 * Removes versions: their objects and this host's folder at once, other hosts' copies soon. Repeated after an interruption, it
 * removes the rest.
 */
export async function removeImages(
  server: ServerContext,
  id: string,
  version: string | null,
): Promise<string> {
  // It becomes a folder's name.
  if (!IMAGE_ID.test(id)) throw new CommandError(`${id} is not the name of an image`, { exit_code: 2 });
  return alone(server, async () => {
    let refusal: AppError | null = null;
    const removed = await transaction(server.db, async (tx) => {
      const versions = await removeImage(tx, id, version);
      await noteOperator(tx, server, 'image.remove', id, { versions });
      return versions;
    }).catch((error: unknown) => {
      if (!(error instanceof AppError)) throw error;
      refusal = error;
      return [];
    });
    const left = await sweepRemoved(server, id, version);
    const gone = [...new Set([...removed, ...left])];
    if (gone.length === 0 && refusal) throw new CommandError((refusal as AppError).message);
    return `${id}: removed ${gone.map((each) => each.slice(0, 12)).join(', ')}\n`;
  });
}

/** Deletes the rest of removed versions. Returns those that had any. */
async function sweepRemoved(
  { config, db }: ServerContext,
  id: string,
  prefix: string | null,
): Promise<string[]> {
  const { images } = pathsIn(config.data_dir);
  const store = await objectStore({ config, db });
  const removed = await listRemoved(db, id);
  const found: string[] = [];
  for (const version of removed) {
    if (prefix !== null && !version.startsWith(prefix)) continue;
    const folder = join(images, id, version.slice(0, 12));
    const here = await access(folder).then(
      () => true,
      () => false,
    );
    if ((await removeStoredImage(store, id, version)) || here) found.push(version);
    await rm(folder, { recursive: true, force: true });
  }
  if (removed.length > 0 && (await listVersions(db, id)).length === 0)
    await rm(join(images, id), { recursive: true, force: true });
  return found;
}

/** Stores the image and registers it. */
async function keep(
  server: ServerContext,
  image: LocalImage,
  action: 'image.build' | 'image.add',
  step: number,
  { steps, signal }: Work,
): Promise<string> {
  const { config, db } = server;
  const { id, version, manifest, size_bytes } = image;
  const store = await objectStore({ config, db });
  const { index_sha256, stored_bytes } = await storeImage(store, image.folder, manifest, {
    signal,
    progress: (done, total) => steps.at(step, 'storing it in object storage', done / total),
  });
  const row = { id, version, recipe: manifest.version, size_bytes, newest: true, index_sha256, stored_bytes };
  await transaction(db, async (tx) => {
    await registerCurrent(tx, row);
    await noteOperator(tx, server, action, id, { version });
  });
  const mib = (bytes: number) => Math.ceil(bytes / 2 ** 20);
  return `${id} ${version.slice(0, 12)}: ${mib(size_bytes)} MiB, ${mib(stored_bytes)} MiB stored. Use it: berth create NAME --image ${id}\n`;
}

async function objectStore({ config, db }: Pick<ServerContext, 'config' | 'db'>) {
  const { objects } = pathsIn(config.data_dir);
  const settings = { s3: config.s3, folder: objects, log: createLog('cli', 'warn') };
  return ownStore(knownMarks(db), await openStore(settings));
}

async function machineOf({ config }: ServerContext, { kernel_path, initrd_path }: LocalImage) {
  const run_as = { uid: PROBE_UID, gid: kvmGroup() ?? VM_GID };
  const { run, jail_etc } = pathsIn(config.data_dir);
  const cache_path = join(run, 'accelerator.json');
  const { jail } = await openJail(jail_etc);
  const { accel } = await chooseAccelerator({
    setting: config.accel,
    qemu_binary: QEMU,
    kernel_path,
    initrd_path,
    cache_path,
    run_as,
    jail,
  });
  const gid = accel === 'kvm' ? run_as.gid : VM_GID;
  return { accel, qemu_binary: QEMU, qemu_img_binary: QEMU_IMG, run_as: { uid: PROBE_UID, gid }, jail };
}

function asRoot(): void {
  if (process.getuid?.() === 0) return;
  throw new CommandError('only root can create images', { next: 'run it with sudo', exit_code: 2 });
}

function explained(error: unknown): unknown {
  return error instanceof UnusableImageError
    ? new CommandError(`the file cannot be an image: ${error.message}`)
    : error;
}
