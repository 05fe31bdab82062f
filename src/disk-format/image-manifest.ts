/** What `manifest.json` says of an image: beside its files in a host's folder, and in the object store's index of it. */

export const IMAGE_FILES = ['vmlinuz', 'initrd.img', 'rootfs.img'] as const;
export type ImageFile = (typeof IMAGE_FILES)[number];

export interface ImageManifest {
  readonly id: string;
  /** Of the recipe that it was built by; of an image of somebody's own, what was given. */
  readonly version: string;
  readonly kernel_release: string;
  /** Of the root file system. */
  readonly size_bytes: number;
  readonly user: string;
  /** SHA-256 of each file; the root file system's is the image's version. */
  readonly files: Readonly<Record<ImageFile, string>>;
}

/** A path's part, an object key's part, and what people type. */
export const IMAGE_ID = /^[a-z0-9]([a-z0-9.-]{0,61}[a-z0-9])?$/;

export function isImageManifest(value: unknown): value is ImageManifest {
  if (typeof value !== 'object' || value === null) return false;
  const { id, version, kernel_release, size_bytes, user, files } = value as Record<string, unknown>;
  return (
    [id, version, kernel_release, user].every((each) => typeof each === 'string') &&
    IMAGE_ID.test(String(id)) &&
    Number.isSafeInteger(size_bytes) &&
    typeof files === 'object' &&
    files !== null &&
    IMAGE_FILES.every((name) => /^[0-9a-f]{64}$/.test(String((files as Record<string, unknown>)[name])))
  );
}
