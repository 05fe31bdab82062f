/**
 * A second reader of the disk format, written from docs/disk-format.md without our code: it uses only node:crypto and
 * node:zlib. It proves that the document matches the program. It is simple and slow, and holds whole objects in memory.
 */
import { createDecipheriv, createHash, hkdfSync } from 'node:crypto';
import { crc32, zstdDecompressSync } from 'node:zlib';

const BLOCK = 65_536;

export interface PlainKey {
  /** `dk_` and 32 hex digits. */
  readonly key_id: string;
  readonly key: Uint8Array;
}

interface Place {
  readonly object: string;
  readonly offset: number;
  readonly stored: number;
  readonly kind: number;
  readonly mark: number;
  readonly hash: Buffer;
  /** Null: not encrypted. */
  readonly key: Buffer | null;
  /** 64 bytes of disk id, epoch, generation: the first 80 bytes of a frame's AAD. */
  readonly home: Buffer;
}

function need(condition: boolean, what: string): asserts condition {
  if (!condition) throw new Error(what);
}

function derive(keys: readonly PlainKey[], id: Buffer, salt: Buffer, info: string): Buffer {
  const found = keys.find(({ key_id }) => key_id === `dk_${id.toString('hex')}`);
  need(found !== undefined, `no data key ${id.toString('hex')}`);
  return Buffer.from(hkdfSync('sha256', found.key, salt, info, 32));
}

function decrypt(key: Buffer, use: number, counter: number, aad: Buffer, text: Buffer, tag: Buffer): Buffer {
  const nonce = Buffer.alloc(12);
  nonce.writeUInt32LE(use, 0);
  nonce.writeBigUInt64LE(BigInt(counter), 4);
  const gcm = createDecipheriv('aes-256-gcm', key, nonce, { authTagLength: 16 });
  gcm.setAAD(aad);
  gcm.setAuthTag(tag);
  return Buffer.concat([gcm.update(text), gcm.final()]);
}

function isZero(bytes: Buffer): boolean {
  return bytes.every((byte) => byte === 0);
}

export class IndependentReader {
  readonly #objects: (key: string) => Buffer;
  readonly #keys: readonly PlainKey[];
  readonly #places = new Map<number, Place>();

  constructor(objects: (key: string) => Buffer, keys: readonly PlainKey[]) {
    this.#objects = objects;
    this.#keys = keys;
  }

  /** Objects of a chain, oldest first. A magic number distinguishes maps from segments. */
  apply(object: string): void {
    const bytes = this.#objects(object);
    if (bytes.subarray(0, 8).toString() === 'BERTHMAP') this.#applyMap(bytes);
    else this.#applySegment(object, bytes);
  }

  /** Reads the disk over its base image. */
  content(base: Buffer): Buffer {
    const disk = Buffer.from(base);
    for (const [block, place] of this.#places) {
      const data = this.#block(block, place);
      data.copy(disk, block * BLOCK, 0, Math.min(BLOCK, disk.length - block * BLOCK));
    }
    return disk;
  }

  /** The objects that hold the disk's blocks. */
  objects(): Set<string> {
    return new Set([...this.#places.values()].map(({ object }) => object));
  }

  /** The blocks that differ from the base image. */
  *changed(): Generator<Buffer> {
    for (const [block, place] of this.#places) yield this.#block(block, place);
  }

  #applySegment(object: string, bytes: Buffer): void {
    const trailer = bytes.subarray(-224);
    need(trailer.subarray(0, 8).toString() === 'BERTHSEG', 'magic');
    need(trailer.readUInt16LE(8) === 2, 'version');
    const flags = trailer.readUInt16LE(10);
    need(flags < 4, 'flags');
    const part = trailer.readUInt32LE(12);
    need(trailer.readUInt32LE(16) === ((flags & 1) === 0 ? 0 : part + 1), 'parts');
    const [attempt, epoch, generation] = [
      trailer.readUInt32LE(20).toString(16).padStart(8, '0'),
      trailer.readBigUInt64LE(24),
      trailer.readBigUInt64LE(32),
    ];
    need(object.endsWith(`/seg/${epoch}/${generation}-${attempt}-${part}`), 'the key says another segment');
    const [count, at, length] = [48, 52, 56].map((field) => trailer.readUInt32LE(field)) as [
      number,
      number,
      number,
    ];
    need(length === 40 * count && at + length + 224 === bytes.length, 'lengths');
    const stored = bytes.subarray(at, at + length);
    const digest = createHash('sha256').update(stored).update(trailer.subarray(0, 192)).digest();
    need(digest.equals(trailer.subarray(192)), 'digest');
    let key: Buffer | null = null;
    let directory = stored;
    if ((flags & 2) === 0) {
      need(isZero(trailer.subarray(128, 192)), 'a key of a segment that is not encrypted');
    } else {
      key = derive(this.#keys, trailer.subarray(128, 144), trailer.subarray(144, 176), 'berth segment v2');
      const tag = trailer.subarray(176, 192);
      directory = decrypt(key, 1, part, trailer.subarray(0, 176), stored, tag);
    }
    const home = Buffer.concat([trailer.subarray(64, 128), trailer.subarray(24, 40)]);
    let end = 0;
    for (let i = 0; i < count; i++) {
      const entry = directory.subarray(i * 40, i * 40 + 40);
      need(entry.readUInt32LE(8) === end, 'frames lie one after another');
      end += entry.readUInt32LE(12);
      this.#places.set(Number(entry.readBigUInt64LE(0)), {
        ...{
          object,
          offset: entry.readUInt32LE(8),
          stored: entry.readUInt32LE(12),
          kind: entry.readUInt16LE(16),
        },
        ...{ mark: entry.readUInt32LE(20), hash: entry.subarray(24, 40), key, home },
      });
    }
    need(end === at, 'the frames end where the directory begins');
  }

  #applyMap(bytes: Buffer): void {
    const head = bytes.subarray(0, 160);
    const digest = createHash('sha256').update(bytes.subarray(0, -32)).digest();
    need(digest.equals(bytes.subarray(-32)), 'digest of a map');
    need(head.readUInt16LE(8) === 1, 'version of a map');
    const flags = head.readUInt16LE(10);
    const body = this.#bodyOf(bytes, head, (flags & 2) !== 0);
    if ((flags & 1) !== 0) this.#places.clear();
    let at = 0;
    const table: Pick<Place, 'object' | 'key' | 'home'>[] = [];
    for (let i = 0; i < head.readUInt32LE(32); i++) {
      const named = body.readUInt16LE(at);
      const object = body.toString('latin1', at + 2, at + 2 + named);
      const rest = body.subarray(at + 2 + named, at + 2 + named + 136);
      const [id, salt] = [rest.subarray(88, 104), rest.subarray(104, 136)];
      const key = isZero(rest.subarray(88)) ? null : derive(this.#keys, id, salt, 'berth segment v2');
      table.push({ object, key, home: Buffer.concat([rest.subarray(24, 88), rest.subarray(8, 24)]) });
      at += 2 + named + 136;
    }
    for (let i = 0; i < head.readUInt32LE(36); i++, at += 40) {
      const entry = body.subarray(at, at + 40);
      const [block, kind] = [entry.readUInt32LE(0), entry.readUInt16LE(16)];
      const segment = table[entry.readUInt32LE(4)];
      if (kind === 3) this.#places.delete(block);
      else if (segment) {
        this.#places.set(block, {
          ...{ ...segment, offset: entry.readUInt32LE(8), stored: entry.readUInt32LE(12), kind },
          ...{ mark: entry.readUInt32LE(20), hash: entry.subarray(24, 40) },
        });
      } else throw new Error('an entry of no segment');
    }
    need(at === body.length, 'the body of a map is used up');
  }

  #bodyOf(bytes: Buffer, head: Buffer, encrypted: boolean): Buffer {
    const length = Number(head.readBigUInt64LE(40));
    if (!encrypted) {
      need(bytes.length === 160 + length + 32, 'length of a map');
      return bytes.subarray(160, 160 + length);
    }
    const key = derive(this.#keys, head.subarray(112, 128), head.subarray(128, 160), 'berth map v1');
    const pieces: Buffer[] = [];
    let at = 160;
    do {
      const plain = Math.min(1_048_576, length - pieces.length * 1_048_576);
      const [text, tag] = [bytes.subarray(at, at + plain), bytes.subarray(at + plain, at + plain + 16)];
      pieces.push(decrypt(key, 2, pieces.length, head, text, tag));
      at += plain + 16;
    } while (pieces.length * 1_048_576 < length);
    need(at + 32 === bytes.length, 'length of a map');
    return Buffer.concat(pieces);
  }

  #block(block: number, { object, offset, stored, kind, mark, hash, key, home }: Place): Buffer {
    const frame = this.#objects(object).subarray(offset, offset + stored);
    const data = kind === 2 ? Buffer.alloc(BLOCK) : this.#unpack(frame, { block, kind, mark, key, home });
    need(data.length === BLOCK, `block ${block} is whole`);
    need(createHash('sha256').update(data).digest().subarray(0, 16).equals(hash), `hash of block ${block}`);
    return data;
  }

  #unpack(
    frame: Buffer,
    {
      block,
      kind,
      mark,
      key,
      home,
    }: Pick<Place, 'kind' | 'mark' | 'key' | 'home'> & { readonly block: number },
  ): Buffer {
    let packed = frame;
    if (key) {
      const aad = Buffer.concat([home, Buffer.alloc(10)]);
      aad.writeBigUInt64LE(BigInt(block), 80);
      aad.writeUInt16LE(kind, 88);
      packed = decrypt(key, 0, mark, aad, frame.subarray(0, -16), frame.subarray(-16));
    } else need(crc32(frame) === mark, `CRC of block ${block}`);
    return kind === 1 ? zstdDecompressSync(packed) : packed;
  }
}
