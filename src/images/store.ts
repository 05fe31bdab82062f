import type { Tx } from '../db/pool.ts';
import { listLiveHosts } from '../hosts/store.ts';

export interface Image {
  readonly id: string;
  readonly versions: readonly string[];
}

/** The images that the connected hosts have. */
export async function listImages(tx: Tx): Promise<Image[]> {
  const versions = new Map<string, Set<string>>();
  for (const host of await listLiveHosts(tx)) {
    for (const image of host.facts.images) {
      versions.set(image.id, (versions.get(image.id) ?? new Set()).add(image.version));
    }
  }
  return [...versions]
    .map(([id, found]) => ({ id, versions: [...found].sort() }))
    .sort((a, b) => a.id.localeCompare(b.id));
}

/** Every host has the built-in image; others are known while a connected host has them. */
export async function imageKnown(tx: Tx, id: string): Promise<boolean> {
  return id === 'debian-12' || (await listImages(tx)).some((image) => image.id === id);
}
