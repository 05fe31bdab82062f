/**
 * The files of a simulated guest: a map in memory from path to file. Answers the calls for files in the frames of
 * `protocol/file-stream.ts`, with the failures of file-tasks.pl. Links, users and permissions do not exist here: owner
 * and mode of a file are stored, and have no effect.
 */
import type { Duplex } from 'node:stream';
import {
  decodePath,
  FROM_FILES,
  StreamFrames,
  streamFrame,
  TO_FILES,
} from '../../src/protocol/file-stream.ts';
import type { HostCall } from '../../src/protocol/host-calls.ts';

export type FileCall = Extract<HostCall, { kind: 'file' }>;

interface Node {
  /** Null: a folder. */
  readonly content: Buffer | null;
  readonly mode: string;
  readonly user: string;
  readonly modified_ms: number;
  /** Of no other file and no earlier content. */
  readonly version: number;
}

/** What is refused: an errno, or a code of file-tasks.pl. */
export class FileRefusal extends Error {
  override name = 'FileRefusal';
  readonly code: number | string;

  constructor(code: number | string, message: string) {
    super(message);
    this.code = code;
  }
}

const absent = () => new FileRefusal(2, 'No such file or directory');
const isFolder = () => new FileRefusal(21, 'Is a directory');
const isNoFolder = () => new FileRefusal(20, 'Not a directory');

const CONTENT_BYTES = 64 * 1024;
/** Of all files of a guest. The developer's memory is the disk. */
const TREE_BYTES = 256 * 1024 * 1024;

let versions = 0;

export class FileTree {
  readonly #nodes: Map<string, Node>;
  readonly #changed: () => void;

  /** `from`: begins as a copy of that tree. */
  constructor(changed: () => void, from?: FileTree) {
    this.#changed = changed;
    this.#nodes = new Map(from ? from.#nodes : undefined);
    if (from === undefined) for (const path of ['/', '/etc', '/root', '/tmp', '/home']) this.#put(path, {});
  }

  /** @throws FileRefusal */
  read(path: string): Buffer {
    const { content } = this.#find(clean(path));
    if (content === null) throw isFolder();
    return content;
  }

  /** The folders above it are made. @throws FileRefusal */
  write(path: string, content: Buffer, { mode, user }: Partial<Pick<Node, 'mode' | 'user'>> = {}): void {
    const name = clean(path);
    const before = this.#nodes.get(name);
    if (before?.content === null || name === '/') throw isFolder();
    let kept = content.length;
    for (const each of this.#nodes.values()) kept += each.content?.length ?? 0;
    if (kept > TREE_BYTES) throw new FileRefusal(28, 'No space left on device');
    this.makeFolder(parentOf(name));
    this.#put(name, { content, mode: mode ?? before?.mode ?? '0644', user: user ?? before?.user ?? 'root' });
  }

  /** With the folders above it. False: it was there. @throws FileRefusal */
  makeFolder(path: string, { mode = '0755', user = 'root' }: { mode?: string; user?: string } = {}): boolean {
    const name = clean(path);
    const before = this.#nodes.get(name);
    if (before) {
      if (before.content !== null) throw isNoFolder();
      return false;
    }
    this.makeFolder(parentOf(name), { user });
    this.#put(name, { mode, user });
    return true;
  }

  /** The names in a folder, sorted. @throws FileRefusal */
  list(path: string): string[] {
    const folder = clean(path);
    if (this.#find(folder).content !== null) throw isNoFolder();
    const names = [...this.#nodes.keys()].filter((each) => each !== '/' && parentOf(each) === folder);
    return names.map(nameOf).sort();
  }

  /** @throws FileRefusal */
  remove(path: string, recursive: boolean): void {
    const name = clean(path);
    if (name === '/') throw new FileRefusal('no_name', 'the root');
    if (this.#find(name).content === null && this.list(name).length > 0 && !recursive)
      throw new FileRefusal(39, 'Directory not empty');
    for (const each of this.#below(name)) this.#nodes.delete(each);
    this.#changed();
  }

  /** @throws FileRefusal */
  move(from: string, to: string): void {
    const [old, target] = [clean(from), clean(to)];
    if (old === '/' || target === '/') throw new FileRefusal('no_name', 'the root');
    if (target.startsWith(`${old}/`)) throw new FileRefusal(22, 'Invalid argument');
    const { content } = this.#find(old);
    const there = this.#nodes.get(target);
    if (there && content === null && there.content !== null) throw isNoFolder();
    if (there?.content === null && content !== null) throw isFolder();
    if (there?.content === null && this.list(target).length > 0)
      throw new FileRefusal(39, 'Directory not empty');
    this.makeFolder(parentOf(target));
    for (const each of this.#below(old)) {
      const node = this.#find(each);
      this.#nodes.delete(each);
      this.#nodes.set(target + each.slice(old.length), node);
    }
    this.#changed();
  }

  /** Answers the call on the stream, and ends it. */
  async serve(line: Duplex, action: FileCall['action']): Promise<void> {
    line.on('error', () => line.destroy());
    const say = (type: keyof typeof FROM_FILES, payload: Uint8Array | string = '') =>
      line.write(streamFrame(FROM_FILES[type], Buffer.from(payload as string)));
    try {
      await this.#answer(action, framesOf(line), say);
    } catch (error) {
      const { code, message } =
        error instanceof FileRefusal ? error : new FileRefusal('failed', String(error));
      say('failed', `${code}\0${message}`);
    }
    line.end();
  }

  async #answer(
    action: FileCall['action'],
    frames: AsyncGenerator<{ readonly type: number; readonly payload: Buffer }>,
    say: (type: keyof typeof FROM_FILES, payload?: Uint8Array | string) => void,
  ): Promise<void> {
    const path = textOf(action.path);
    switch (action.verb) {
      case 'read': {
        const content = this.read(path);
        say('opened', this.#fields(clean(path)));
        const range = (await frames.next()).value?.payload ?? Buffer.alloc(16);
        const from = Number(range.readBigUInt64BE(0));
        const until = Math.min(content.length, from + Number(range.readBigUInt64BE(8)));
        for (let at = from; at < until; at += CONTENT_BYTES)
          say('content', content.subarray(at, Math.min(until, at + CONTENT_BYTES)));
        return say('done');
      }
      case 'write': {
        const before = this.#nodes.get(clean(path));
        if (before?.content === null) throw isFolder();
        say('opened', before ? this.#fields(clean(path)) : '');
        const parts: Buffer[] = [];
        for await (const { type, payload } of frames) {
          if (type === TO_FILES.content) parts.push(payload);
          if (type !== TO_FILES.commit) continue;
          const now = this.#nodes.get(clean(path));
          const wanted = payload.toString();
          if (wanted !== '' && wanted !== (now ? versionOf(now) : '-'))
            throw new FileRefusal('changed', 'it has changed');
          this.write(path, Buffer.concat(parts), ownership(action));
          return say('done', this.#done(clean(path), now === undefined));
        }
        return;
      }
      case 'list': {
        const after = textOf(action.after ?? '');
        const found = this.list(path).filter((name) => name > after);
        for (const name of found.slice(0, action.count)) say('entry', this.#fields(clean(`${path}/${name}`)));
        return say('done');
      }
      case 'remove':
        this.remove(path, action.recursive);
        return say('done');
      case 'move':
        this.move(path, textOf(action.to));
        return say('done', this.#done(clean(textOf(action.to)), false));
      case 'directory': {
        if (this.#nodes.get(clean(path))?.content) throw new FileRefusal(17, 'File exists');
        return say('done', this.#done(clean(path), this.makeFolder(path, ownership(action))));
      }
    }
  }

  #done(path: string, is_new: boolean): Buffer {
    return Buffer.concat([Buffer.from(is_new ? '1\0' : '0\0'), this.#fields(path)]);
  }

  /** As `fieldsOf` of the protocol reads them. */
  #fields(path: string): Buffer {
    const node = this.#find(path);
    const { content, mode, user, modified_ms } = node;
    const words = [
      ...[
        content === null ? 'directory' : 'file',
        String(content?.length ?? 4096),
        mode.padStart(4, '0'),
        user,
      ],
      ...[String(Math.floor(modified_ms / 1_000)), String((modified_ms % 1_000) * 1_000_000)],
      ...[versionOf(node), path === '/' ? '' : nameOf(path)],
    ];
    return Buffer.from(words.join('\0'));
  }

  #find(path: string): Node {
    const found = this.#nodes.get(path);
    if (found) return found;
    // A part of the path may be a file.
    for (let above = path; above !== '/'; ) {
      above = parentOf(above);
      if (this.#nodes.get(above)?.content) throw isNoFolder();
    }
    throw absent();
  }

  /** It, and all in it. */
  #below(path: string): string[] {
    return [...this.#nodes.keys()].filter((each) => each === path || each.startsWith(`${path}/`));
  }

  #put(path: string, node: Partial<Node>): void {
    const modified_ms = Date.now();
    versions += 1;
    this.#nodes.set(path, {
      ...{ content: null, mode: '0755', user: 'root', modified_ms, version: versions },
      ...node,
    });
    this.#changed();
  }
}

function versionOf({ version }: Node): string {
  return version.toString(16);
}

function ownership({ mode, user }: { readonly mode: string | null; readonly user: string | null }) {
  return { ...(mode === null ? {} : { mode }), ...(user === null ? {} : { user }) };
}

/** Without `.`, `..` and needless slashes. */
function clean(path: string): string {
  const parts: string[] = [];
  for (const part of path.split('/')) {
    if (part === '..') parts.pop();
    else if (part !== '' && part !== '.') parts.push(part);
  }
  return `/${parts.join('/')}`;
}

function parentOf(path: string): string {
  return path.slice(0, Math.max(1, path.lastIndexOf('/')));
}

function nameOf(path: string): string {
  return path.slice(path.lastIndexOf('/') + 1);
}

/** Bytes that are no UTF-8 become U+FFFD: the simulated guest has no such names. */
function textOf(encoded: string): string {
  const bytes = decodePath(encoded);
  if (bytes === null || bytes.includes(0)) throw new FileRefusal('failed', 'the path is malformed');
  return bytes.toString('utf8');
}

async function* framesOf(line: Duplex) {
  const frames = new StreamFrames();
  for await (const chunk of line) yield* frames.push(chunk as Buffer);
}
