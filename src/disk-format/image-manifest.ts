/** `manifest.json` of an image. A host has it beside the image's files; the object store has it in the image's index. */

export const IMAGE_FILES = ['vmlinuz', 'initrd.img', 'rootfs.img'] as const;
export type ImageFile = (typeof IMAGE_FILES)[number];

export interface ImageManifest {
  readonly id: string;
  /** Of the recipe; for a custom image, of the input. */
  readonly version: string;
  readonly kernel_release: string;
  /** Of the root file system. */
  readonly size_bytes: number;
  readonly user: string;
  /** SHA-256 of each file. The root file system's is the image's version. */
  readonly files: Readonly<Record<ImageFile, string>>;
}

/** Safe in paths and object keys, and easy to type. */
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
