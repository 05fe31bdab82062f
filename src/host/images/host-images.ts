/**
 * Keeps the images in a host's folder, and keeps that folder in step with the object store: images that were built here
 * are uploaded, and images that disks need are downloaded.
 *
 * `<image id>/<12 digits>/` has manifest, kernel, initramfs and root file system. This folder appears atomically and
 * never changes, because VMs and overlays use its files. If a file is missing, or the root file system has another size
 * than the manifest says, the folder does not count as an image.
 */
import { chmod, mkdir, readdir, readFile, readlink, rm, rmdir, stat } from 'node:fs/promises';
import { basename, join } from 'node:path';
import {
  fetchImage,
  IMAGE_FILES,
  ImageDamagedError,
  type ImageManifest,
  isImageManifest,
  storeImage,
} from '../../disk-format/image-objects.ts';
import type { ObjectStore } from '../../object-store/object-store.ts';
import { BATCHES, BatchSender } from '../../protocol/batches.ts';
import type { ControlPlaneClient } from '../../protocol/client.ts';
import { IMAGES_MAX, type OfferedImage, type OfferResponse } from '../../protocol/host-types.ts';
import { errnoOf, messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { backoffMs, pause } from '../../shared/retry.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';

export interface LocalImage {
  readonly id: string;
  /** SHA-256 of the root file system: two builds of one recipe differ, and a disk belongs to exactly one. */
  readonly version: string;
  readonly manifest: ImageManifest;
  readonly folder: string;
  readonly kernel_path: string;
  readonly initrd_path: string;
  readonly rootfs_path: string;
  readonly size_bytes: number;
  readonly newest: boolean;
}

/** The image cannot be used. The message names the missing parts and the remedy. */
export class ImageError extends Error {
  override name = 'ImageError';
}

async function namesIn(folder: string): Promise<string[]> {
  try {
    return (await readdir(folder, { withFileTypes: true }))
      .filter((entry) => entry.isDirectory() && !entry.name.startsWith('.'))
      .map((entry) => entry.name);
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return [];
    throw error;
  }
}

/** null: there is none, or it is incomplete. */
export async function readHostImage(folder: string, newest: boolean): Promise<LocalImage | null> {
  try {
    const manifest: unknown = JSON.parse(await readFile(join(folder, 'manifest.json'), 'utf8'));
    if (!isImageManifest(manifest)) return null;
    const sizes = await Promise.all(IMAGE_FILES.map(async (name) => (await stat(join(folder, name))).size));
    const rootfs_bytes = sizes[IMAGE_FILES.indexOf('rootfs.img')];
    if (sizes.includes(0) || rootfs_bytes !== manifest.size_bytes) return null;
    return {
      id: manifest.id,
      version: manifest.files['rootfs.img'],
      manifest,
      folder,
      size_bytes: manifest.size_bytes,
      kernel_path: join(folder, 'vmlinuz'),
      initrd_path: join(folder, 'initrd.img'),
      rootfs_path: join(folder, 'rootfs.img'),
      newest,
    };
  } catch (error) {
    if (error instanceof SyntaxError || errnoOf(error) !== undefined) return null;
    throw error;
  }
}

/** All complete images. */
export async function listHostImages(images_dir: string): Promise<LocalImage[]> {
  const found: LocalImage[] = [];
  for (const id of await namesIn(images_dir)) {
    const current = await readFile(join(images_dir, id, 'current', 'manifest.json'), 'utf8').catch(() => '');
    for (const name of await namesIn(join(images_dir, id))) {
      const image = await readHostImage(join(images_dir, id, name), false);
      if (image?.id === id) found.push({ ...image, newest: current.includes(image.version) });
    }
  }
  return found;
}

/** The image of exactly `version`, or the newest if that is null. null: it is not on this host. */
export async function findHostImage(
  images_dir: string,
  id: string,
  version: string | null,
): Promise<LocalImage | null> {
  const images = (await listHostImages(images_dir)).filter((image) => image.id === id);
  if (version !== null) return images.find((each) => each.version === version) ?? null;
  return images.find((each) => each.newest) ?? images[0] ?? null;
}

const LOOK_EVERY_MS = 30_000;

export interface ImageKeeperOptions {
  readonly images_dir: string;
  readonly client: Pick<ControlPlaneClient, 'offerImages' | 'registerImage' | 'findImage'>;
  readonly store: ObjectStore;
  readonly log: Log;
}

/**
 * Keeps this host's images and the object store in step: images built here are stored and registered, and an image that a disk
 * needs is fetched.
 *
 * Invariants: one transfer of an image at a time. A disk's generation is committed only after its image is stored
 * ({@link ImageKeeper.stored}). A local image is removed only if the control plane says that nobody needs it.
 */
export class ImageKeeper {
  readonly #options: ImageKeeperOptions;
  /** Versions that are stored, or need not be stored. */
  readonly #settled = new Set<string>();
  readonly #durable = new Set<string>();
  readonly #fetching = new Map<
    string,
    { readonly image: Promise<LocalImage>; readonly given_up: () => boolean }
  >();
  #turn: Promise<unknown> = Promise.resolve();

  constructor(options: ImageKeeperOptions) {
    this.#options = options;
  }

  /** Stores new images, found every half minute. */
  async run(signal: AbortSignal): Promise<void> {
    for (let failures = 0; !signal.aborted; ) {
      try {
        await this.#offer(signal);
        failures = 0;
        await pause(LOOK_EVERY_MS, signal);
      } catch (error) {
        if (signal.aborted) return;
        if (failures === 8)
          this.#options.log.warn({ reason: messageOf(error) }, 'images could not be stored yet');
        await pause(backoffMs(failures++, 500, LOOK_EVERY_MS), signal);
      }
    }
  }

  /**
   * The image of a disk: exactly `version`, or the newest if that is null. Fetched if it is not on this host.
   * @throws ImageError naming the missing parts, store errors, ControlPlaneUnavailable
   */
  async forDisk(id: string, version: string | null, signal?: AbortSignal): Promise<LocalImage> {
    const { images_dir, client } = this.#options;
    const here = await findHostImage(images_dir, id, version);
    if (here) return here;
    const registered = await client.findImage({ id, version });
    if (!registered) {
      const what =
        version === null ? `no image "${id}"` : `no image "${id}" of version ${version.slice(0, 12)}`;
      throw new ImageError(
        `${what}${version === null ? '' : ', on which the disk is based,'} is on this host or in the object store; ` +
          `restore its folder in ${images_dir} from a copy`,
      );
    }
    const under_way = this.#fetching.get(registered.version);
    if (under_way) {
      const shared = under_way.image.catch((error: unknown) => {
        // The first caller has aborted its fetch: start again for the others.
        if (!under_way.given_up() || signal?.aborted) throw error;
        return this.forDisk(id, version, signal);
      });
      return signal ? unlessAborted(shared, signal) : shared;
    }
    const image = this.#fetch(id, registered, signal).finally(() =>
      this.#fetching.delete(registered.version),
    );
    this.#fetching.set(registered.version, { image, given_up: () => signal?.aborted === true });
    return image;
  }

  /** Resolves once the image of a disk is in the object store. */
  async stored(id: string, version: string, signal: AbortSignal): Promise<void> {
    if (this.#durable.has(version)) return;
    const { images_dir } = this.#options;
    const image = await findHostImage(images_dir, id, version);
    // Removed from this host while a machine runs on it: enough if it is registered.
    if (!image) {
      if (await this.#options.client.findImage({ id, version })) this.#durable.add(version);
      else
        throw new ImageError(`the image "${id}" of version ${version.slice(0, 12)} is gone from this host`);
      return;
    }
    await this.#settle([image], true, signal);
  }

  async #fetch(
    id: string,
    { version, index_sha256 }: { version: string; index_sha256: string },
    signal: AbortSignal | undefined,
  ): Promise<LocalImage> {
    const { images_dir, store, log } = this.#options;
    const folder = join(images_dir, id, version.slice(0, 12));
    // Another call may have fetched it since the request, and VMs may run on it.
    const meanwhile = await findHostImage(images_dir, id, version);
    if (meanwhile) return meanwhile;
    log.info({ image: id, version }, 'the image is fetched from the object store');
    await mkdir(join(images_dir, id), { recursive: true });
    await chmod(join(images_dir, id), 0o711);
    // A folder with that name is incomplete, or it had been found.
    await rm(folder, { recursive: true, force: true });
    try {
      await fetchImage(store, { id, version, index_sha256 }, folder, signal ? { signal } : {});
    } catch (error) {
      if (!(error instanceof ImageDamagedError)) throw error;
      throw new ImageError(
        `the image "${id}" of version ${version.slice(0, 12)} is not on this host, and ${error.message}`,
        {
          cause: error,
        },
      );
    }
    const image = await findHostImage(images_dir, id, version);
    if (!image) throw new ImageError(`the image fetched into ${folder} is not there`);
    this.#settled.add(version);
    this.#durable.add(version);
    return image;
  }

  async #offer(signal: AbortSignal): Promise<void> {
    const images = await listHostImages(this.#options.images_dir);
    const unknown = images.filter(({ version }) => !this.#settled.has(version));
    if (unknown.length > 0) await this.#settle(unknown, false, signal);
  }

  /** One call at a time; a later call finds the images settled. */
  #settle(images: readonly LocalImage[], needed: boolean, signal: AbortSignal): Promise<void> {
    const mine = this.#turn.then(() => this.#settleNow(images, needed, signal));
    this.#turn = mine.catch(() => undefined);
    return mine;
  }

  async #settleNow(images: readonly LocalImage[], needed: boolean, signal: AbortSignal): Promise<void> {
    const { client, log } = this.#options;
    const known = needed ? this.#durable : this.#settled;
    const open = images.filter(({ version }) => !known.has(version)).slice(0, IMAGES_MAX);
    if (open.length === 0) return;
    const offers = new Map(
      open.map((image) => {
        const { id, version, manifest } = image;
        return [{ id, version, recipe: untrustedText(manifest.version), needed }, image];
      }),
    );
    const verdicts = new Map<OfferedImage, OfferResponse['verdicts'][number] | undefined>();
    // A new sender: a generation may wait for an image, so that it is offered again.
    await new BatchSender(BATCHES.offerImages, log).send([...offers.keys()], {
      post: async (some) => {
        const answer = await client.offerImages({ images: some });
        for (const [at, offer] of some.entries()) verdicts.set(offer, answer.verdicts[at]);
      },
    });
    const failures: unknown[] = [];
    for (const [offer, image] of offers) {
      try {
        if (!verdicts.has(offer)) throw new ImageError(`the control plane refuses the image "${image.id}"`);
        await this.#carryOutVerdict(verdicts.get(offer), image, signal);
      } catch (error) {
        if (signal.aborted) throw error;
        // Continue with the other images.
        failures.push(error);
      }
    }
    if (failures.length > 0) throw failures[0];
  }

  async #carryOutVerdict(
    verdict: OfferResponse['verdicts'][number] | undefined,
    image: LocalImage,
    signal: AbortSignal,
  ): Promise<void> {
    const { client, store, log } = this.#options;
    if (verdict === 'removed') await this.#remove(image);
    if (verdict === 'wanted') {
      const { index_sha256, stored_bytes } = await storeImage(store, image.folder, image.manifest, {
        signal,
      });
      await client.registerImage({
        ...{ id: image.id, version: image.version, recipe: untrustedText(image.manifest.version) },
        ...{ size_bytes: image.size_bytes, newest: image.newest, index_sha256, stored_bytes },
      });
      log.info({ image: image.id, version: image.version, stored_bytes }, 'the image is stored');
    }
    if (verdict === 'wanted' || verdict === 'stored') this.#durable.add(image.version);
    this.#settled.add(image.version);
  }

  /** It is not needed any more. The current version of the standard image stays, for new disks. */
  async #remove({ id, version, folder }: LocalImage): Promise<void> {
    const { images_dir, log } = this.#options;
    const current = await readlink(join(images_dir, id, 'current')).catch(() => null);
    if (current === basename(folder) && id.startsWith('debian-12')) return;
    log.info({ image: id, version }, 'a removed image was deleted from this host');
    await rm(folder, { recursive: true, force: true });
    if (current !== basename(folder)) return;
    await rm(join(images_dir, id, 'current'), { force: true });
    // Fails if other versions are left, which disks may use.
    await rmdir(join(images_dir, id)).catch(() => undefined);
  }
}

/** Stops waiting when `signal` aborts, without stopping the work. @throws the signal's reason */
async function unlessAborted<T>(work: Promise<T>, signal: AbortSignal): Promise<T> {
  const left = Promise.withResolvers<never>();
  const leave = () => left.reject(signal.reason);
  if (signal.aborted) leave();
  signal.addEventListener('abort', leave, { once: true });
  return Promise.race([left.promise, work]).finally(() => signal.removeEventListener('abort', leave));
}
