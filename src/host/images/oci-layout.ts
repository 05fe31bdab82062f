/**
 * Reads the layers of an OCI image layout (opencontainers/image-spec, image-layout.md) for this host's platform. Every
 * blob is verified against the hash that is its name.
 *
 * Invariant: only regular files inside of the layout are read, so no link leads to another file of this host.
 */
import { createHash } from 'node:crypto';
import { constants } from 'node:fs';
import { type FileHandle, open, readlink, realpath } from 'node:fs/promises';
import { join } from 'node:path';
import { errnoOf } from '../../shared/errors.ts';
import { readTar, type TarEntry, UnusableImageError } from './read-tar.ts';
import { unpacked } from './unpacked.ts';

const JSON_MAX_BYTES = 4 * 1024 * 1024;
const LAYERS_MAX = 256;
/** An index may refer to an index. */
const DEPTH_MAX = 3;
const PLATFORM = { os: 'linux', architecture: 'amd64' } as const;

interface Descriptor {
  readonly mediaType: string;
  readonly digest: string;
  readonly size: number;
  readonly platform?: { readonly os?: string; readonly architecture?: string };
}

/** The layers, lowest first. @throws UnusableImageError */
export async function ociLayers(folder: string): Promise<Descriptor[]> {
  const layout = await readJson(folder, 'oci-layout');
  if (layout['imageLayoutVersion'] !== '1.0.0') {
    throw new UnusableImageError('the version in oci-layout is not 1.0.0');
  }
  let said = await readJson(folder, 'index.json');
  for (let depth = 0; Array.isArray(said['manifests']); depth++) {
    if (depth === DEPTH_MAX) throw new UnusableImageError('the OCI indexes are nested too deep');
    const chosen = choose(said['manifests'] as unknown[]);
    said = parse(await readBlob(folder, chosen, JSON_MAX_BYTES), chosen.digest);
  }
  const { layers } = said;
  if (!Array.isArray(layers) || layers.length === 0 || layers.length > LAYERS_MAX) {
    throw new UnusableImageError(`the OCI manifest has no layers, or more than ${LAYERS_MAX}`);
  }
  return layers.map(descriptor).map((layer) => {
    if (!/\.tar(\+gzip|\+zstd|\.gzip)?$/.test(layer.mediaType)) {
      throw new UnusableImageError(`the OCI image has a layer of the unknown type ${layer.mediaType}`);
    }
    return layer;
  });
}

/** The entries of a layer. Verifies its hash at the end. @throws UnusableImageError */
export async function* layerEntries(folder: string, layer: Descriptor): AsyncGenerator<TarEntry> {
  await using file = await openBlob(folder, layer);
  const hash = createHash('sha256');
  yield* readTar(unpacked(file, (chunk) => hash.update(chunk)));
  if (`sha256:${hash.digest('hex')}` !== layer.digest) throw damaged(layer.digest);
}

/** Chooses the manifest for this platform. A single manifest may have no platform. */
function choose(manifests: readonly unknown[]): Descriptor {
  const all = manifests.map(descriptor);
  const fit = all.filter(
    ({ platform }) => platform?.os === PLATFORM.os && platform.architecture === PLATFORM.architecture,
  );
  const [only] = all.filter(({ platform }) => platform === undefined);
  const chosen = fit[0] ?? only;
  if (!chosen) throw new UnusableImageError('the OCI image is not for linux/amd64');
  if (fit.length > 1 || (fit.length === 0 && all.length > 1)) {
    throw new UnusableImageError('the OCI layout has several images; use one with a single image');
  }
  return chosen;
}

function descriptor(value: unknown): Descriptor {
  const { mediaType, digest, size } = (value ?? {}) as Record<string, unknown>;
  if (!/^sha256:[0-9a-f]{64}$/.test(String(digest)) || !Number.isSafeInteger(size)) {
    throw new UnusableImageError(
      'the OCI image has an invalid blob reference: it needs a sha256 digest and a size',
    );
  }
  if (typeof mediaType !== 'string')
    throw new UnusableImageError('the OCI image has a blob reference without a type');
  return value as Descriptor;
}

async function openBlob(folder: string, { digest, size }: Descriptor): Promise<FileHandle> {
  const file = await openInside(folder, join('blobs', 'sha256', digest.slice('sha256:'.length)));
  if (!file) throw new UnusableImageError(`the OCI layout has no blob ${digest}`);
  const found = await file.stat();
  if (found.isFile() && found.size === size) return file;
  await file.close();
  throw damaged(digest);
}

async function readBlob(folder: string, blob: Descriptor, max_bytes: number): Promise<Buffer> {
  if (blob.size > max_bytes) throw new UnusableImageError(`${blob.digest} is too large`);
  await using file = await openBlob(folder, blob);
  const bytes = await file.readFile();
  if (`sha256:${createHash('sha256').update(bytes).digest('hex')}` !== blob.digest)
    throw damaged(blob.digest);
  return bytes;
}

async function readJson(folder: string, name: string): Promise<Record<string, unknown>> {
  await using file = await openInside(folder, name);
  const found = await file?.stat();
  if (!file || !found?.isFile() || found.size > JSON_MAX_BYTES) {
    throw new UnusableImageError(`the OCI layout has no ${name}`);
  }
  return parse(await file.readFile(), name);
}

/**
 * Opens a file of the layout; null: it does not exist. The path of the open file is checked, because the layout's owner could
 * replace a folder by a link between a check and the opening. @throws UnusableImageError for a link
 */
async function openInside(folder: string, name: string): Promise<FileHandle | null> {
  const root = await realpath(folder);
  // Opening a pipe would wait for a writer.
  const flags = constants.O_RDONLY | constants.O_NOFOLLOW | constants.O_NONBLOCK;
  const file = await open(join(root, name), flags).catch((error: unknown) => {
    const code = errnoOf(error) ?? '';
    if (code === 'ELOOP') throw leadsOut(name);
    if (['ENOENT', 'ENOTDIR', 'ENXIO'].includes(code)) return null;
    throw error;
  });
  if (!file || (await readlink(`/proc/self/fd/${file.fd}`)) === join(root, name)) return file;
  await file.close();
  throw leadsOut(name);
}

function leadsOut(name: string): UnusableImageError {
  return new UnusableImageError(
    `${name} of the OCI layout is reached by a link; give a layout without links: cp -rL LAYOUT COPY`,
  );
}

function parse(bytes: Buffer, name: string): Record<string, unknown> {
  try {
    const value: unknown = JSON.parse(bytes.toString('utf8'));
    if (typeof value === 'object' && value !== null) return value as Record<string, unknown>;
  } catch {
    // Reported below.
  }
  throw new UnusableImageError(`${name} of the OCI layout is not a JSON object`);
}

function damaged(digest: string): UnusableImageError {
  return new UnusableImageError(`the blob ${digest} of the OCI layout is damaged`);
}
