/**
 * Builds the root file system of a new image from archives: a tree in memory, with the contents of files in a folder.
 * Paths and links are resolved in that tree only. Only the finished tree is written to the host's disk, links last, so
 * that nothing is written through a link.
 *
 * Invariants:
 * - No path leaves the root.
 * - A later layer's entries replace earlier ones. Its whiteouts delete only entries of earlier layers.
 * - Entries, depth and bytes are limited.
 * - No device, socket or pipe is created.
 */
import { chmod, chown, lchown, link, mkdir, open, rename, rm, symlink, utimes } from 'node:fs/promises';
import { join } from 'node:path';
import { type TarEntry, UnusableImageError } from './read-tar.ts';

const ENTRIES_MAX = 500_000;
const DEPTH_MAX = 128;
const NAME_MAX_BYTES = 255;
const PATH_MAX_BYTES = 4_095;
const LINKS_MAX = 40;
const WHITEOUT = '.wh.';
const OPAQUE = '.wh..wh..opq';

interface Owned {
  readonly mode: number;
  readonly uid: number;
  readonly gid: number;
  readonly mtime: number;
}
interface Content extends Owned {
  readonly path: string;
  readonly size_bytes: number;
}
type Folder = { kind: 'folder'; layer: number; owned: Owned; readonly children: Map<string, Node> };
type File = { kind: 'file'; layer: number; readonly content: Content };
type Link = { kind: 'symlink'; layer: number; readonly owned: Owned; readonly target: string };
type Node = Folder | File | Link;

const PLAIN: Owned = { mode: 0o755, uid: 0, gid: 0, mtime: 0 };

export interface TreeOptions {
  /** An empty folder for the contents of files. */
  readonly folder: string;
  /** Limit of all unpacked bytes, including those replaced later. */
  readonly max_bytes: number;
}

export class ImageTree {
  readonly #options: TreeOptions;
  readonly #root: Folder = { kind: 'folder', layer: 0, owned: PLAIN, children: new Map() };
  #layer = 0;
  #entries = 0;
  #bytes = 0;

  constructor(options: TreeOptions) {
    this.#options = options;
  }

  get unpacked_bytes(): number {
    return this.#bytes;
  }

  /** The number of entries in the archives, including those replaced later. */
  get entries(): number {
    return this.#entries;
  }

  /** Applies one archive. @param whiteouts whether `.wh.` names delete entries (layers of OCI images) */
  async addLayer(entries: AsyncIterable<TarEntry>, { whiteouts }: { whiteouts: boolean }): Promise<void> {
    this.#layer += 1;
    for await (const entry of entries) {
      this.#count();
      await this.#add(entry, whiteouts);
    }
  }

  /** Counts an entry, or a folder that exists only in a path. */
  #count(): void {
    this.#entries += 1;
    if (this.#entries > ENTRIES_MAX) {
      throw new UnusableImageError(`the archive has more than ${ENTRIES_MAX} entries`);
    }
  }

  /** The kind of the node at a path, following links; null: none. */
  has(path: string): Node['kind'] | null {
    return this.#find(partsOf(path))?.kind ?? null;
  }

  async #add(entry: TarEntry, whiteouts: boolean): Promise<void> {
    const parts = partsOf(entry.path);
    const name = parts.at(-1);
    if (name === undefined) {
      if (entry.kind === 'folder') this.#root.owned = ownedOf(entry);
      return;
    }
    if (whiteouts && name.startsWith(WHITEOUT)) return this.#takeAway(parts.slice(0, -1), name);
    if (entry.kind === 'fifo' || entry.kind === 'device') {
      // The guest's kernel fills /dev, and programs create their pipes.
      if (entry.kind === 'fifo' || parts[0] === 'dev') return;
      throw new UnusableImageError(`${entry.path} is a device outside /dev`);
    }
    const folder = this.#folderAt(parts.slice(0, -1), entry.path);
    const { children } = folder;
    switch (entry.kind) {
      case 'folder': {
        const there = children.get(name);
        if (there?.kind === 'folder') Object.assign(there, { owned: ownedOf(entry), layer: this.#layer });
        else children.set(name, this.#newFolder(ownedOf(entry)));
        return;
      }
      case 'symlink':
        if (entry.target === '' || !canBePath(entry.target)) {
          throw new UnusableImageError(`${entry.path} is a link to an invalid target`);
        }
        children.set(name, {
          kind: 'symlink',
          layer: this.#layer,
          owned: ownedOf(entry),
          target: entry.target,
        });
        return;
      case 'hard link': {
        const to = partsOf(entry.target);
        const target = this.#folderOf(to.slice(0, -1))?.children.get(to.at(-1) ?? '');
        if (!target || target.kind === 'folder') {
          throw new UnusableImageError(
            `${entry.path} is a hard link to ${entry.target}, which is no file of the archive`,
          );
        }
        children.set(name, { ...target, layer: this.#layer });
        return;
      }
      case 'file':
        children.set(name, { kind: 'file', layer: this.#layer, content: await this.#keep(entry) });
    }
  }

  async #keep(entry: TarEntry): Promise<Content> {
    const { folder, max_bytes } = this.#options;
    if (this.#bytes + entry.size_bytes > max_bytes) {
      throw new UnusableImageError(`unpacked it has more than ${Math.floor(max_bytes / 2 ** 30)} GiB`);
    }
    this.#bytes += entry.size_bytes;
    const path = join(folder, String(this.#entries));
    await using file = await open(path, 'wx', 0o600);
    for await (const piece of entry.body()) {
      for (let done = 0; done < piece.length; ) done += (await file.write(piece, done)).bytesWritten;
    }
    return { ...ownedOf(entry), path, size_bytes: entry.size_bytes };
  }

  /** A whiteout deletes an entry of earlier layers; an opaque one deletes all entries of a folder. */
  #takeAway(parts: readonly string[], name: string): void {
    const folder = this.#folderOf(parts);
    if (!folder) return;
    if (name === OPAQUE) {
      for (const child of [...folder.children.keys()]) this.#dropEarlier(folder, child);
      return;
    }
    // Other names of this form are the layer's metadata.
    if (name.startsWith(`${WHITEOUT}${WHITEOUT}`)) return;
    const gone = name.slice(WHITEOUT.length);
    partsOf(gone);
    this.#dropEarlier(folder, gone);
  }

  #dropEarlier(folder: Folder, name: string): void {
    const node = folder.children.get(name);
    if (!node) return;
    if (node.kind === 'folder') for (const child of [...node.children.keys()]) this.#dropEarlier(node, child);
    const empty = node.kind !== 'folder' || node.children.size === 0;
    if (node.layer < this.#layer && empty) folder.children.delete(name);
  }

  #newFolder(owned: Owned): Folder {
    return { kind: 'folder', layer: this.#layer, owned, children: new Map() };
  }

  /** The folder at a path, following links, created if missing. @throws UnusableImageError for another kind of node */
  #folderAt(parts: readonly string[], of: string): Folder {
    const folder = this.#folderOf(parts, true);
    if (!folder) throw new UnusableImageError(`${of} has a parent that is not a folder`);
    return folder;
  }

  #folderOf(parts: readonly string[], make = false): Folder | null {
    const node = this.#find(parts, make);
    return node?.kind === 'folder' ? node : null;
  }

  /** Resolves a path like the guest's kernel: from the root, which is its own parent. */
  #find(parts: readonly string[], make = false): Node | null {
    const way: Folder[] = [this.#root];
    const left = [...parts].reverse();
    for (let links = 0; left.length > 0; ) {
      const name = left.pop() ?? '';
      const here = way.at(-1) ?? this.#root;
      if (name === '' || name === '.') continue;
      if (name === '..') {
        if (way.length > 1) way.pop();
        continue;
      }
      let next = here.children.get(name);
      if (!next && make) {
        this.#count();
        next = this.#newFolder(PLAIN);
        here.children.set(name, next);
      }
      if (!next) return null;
      if (next.kind === 'symlink') {
        links += 1;
        if (links > LINKS_MAX) return null;
        if (next.target.startsWith('/')) way.length = 1;
        left.push(...next.target.split('/').reverse());
        continue;
      }
      if (next.kind === 'file') return left.every((each) => each === '') ? next : null;
      if (way.length > DEPTH_MAX)
        throw new UnusableImageError(`folders are nested more than ${DEPTH_MAX} deep`);
      way.push(next);
    }
    return way.at(-1) ?? null;
  }

  /** Writes the tree below `folder`, which must be empty and private. */
  async writeTo(folder: string): Promise<void> {
    const placed = new Map<string, string>();
    await this.#writeFolder(this.#root, folder, placed);
    // The contents of replaced files.
    await rm(this.#options.folder, { recursive: true, force: true });
  }

  async #writeFolder(node: Folder, path: string, placed: Map<string, string>): Promise<void> {
    await mkdir(path, { recursive: true, mode: 0o700 });
    for (const [name, child] of node.children) {
      const at = join(path, name);
      if (child.kind === 'folder') await this.#writeFolder(child, at, placed);
      else if (child.kind === 'file') await writeFile(child.content, at, placed);
    }
    for (const [name, child] of node.children) {
      if (child.kind !== 'symlink') continue;
      await symlink(child.target, join(path, name));
      await lchown(join(path, name), child.owned.uid, child.owned.gid);
    }
    await settle(path, node.owned);
  }
}

async function writeFile(content: Content, at: string, placed: Map<string, string>): Promise<void> {
  const first = placed.get(content.path);
  if (first !== undefined) return link(first, at);
  await rename(content.path, at);
  placed.set(content.path, at);
  await settle(at, content);
}

/** Sets the owner first, because that clears set-id bits. */
async function settle(path: string, { mode, uid, gid, mtime }: Owned): Promise<void> {
  await chown(path, uid, gid);
  await chmod(path, mode);
  await utimes(path, mtime, mtime);
}

function ownedOf({ mode, uid, gid, mtime }: TarEntry): Owned {
  return { mode, uid, gid, mtime };
}

/** @throws UnusableImageError for a path outside of the root, or an invalid one */
function partsOf(path: string): string[] {
  const parts = path.split('/').filter((part) => part !== '' && part !== '.');
  const shown = JSON.stringify(path.slice(0, 200));
  if (parts.includes('..')) throw new UnusableImageError(`the path ${shown} leads out of the image`);
  const too_long = parts.some((part) => Buffer.byteLength(part) > NAME_MAX_BYTES);
  if (too_long || parts.length > DEPTH_MAX || !canBePath(path)) {
    throw new UnusableImageError(`the path ${shown} is invalid`);
  }
  return parts;
}

/** U+FFFD replaces bytes that are not UTF-8, so the original is lost. */
function canBePath(text: string): boolean {
  return Buffer.byteLength(text) <= PATH_MAX_BYTES && !text.includes('\0') && !text.includes('\ufffd');
}
