/**
 * Computes the contents that a region of a disk may hold after a crash, from the reports of its writer. Pure.
 *
 * The region consists of blocks of 4 KiB. Each operation has a number. A write puts its number into every block, a
 * zeroing zeroes the blocks, and a discard may zero them or leave them. The writer reports each operation before it
 * begins and after it ends, and the operations that a FLUSH has covered.
 *
 * After a crash each sector holds the result of the newest operation that must have survived, or of a later one,
 * including operations whose report was lost.
 */
import assert from 'node:assert/strict';

export const BLOCK_BYTES = 4096;
const SECTOR_BYTES = 512;
const SECTORS = BLOCK_BYTES / SECTOR_BYTES;

/** A block's content: the number of the write in it, 0 for zeroes, or one number per sector where they differ. */
export type BlockContent = number | readonly number[];

interface Operation {
  readonly number: number;
  /** The content of its blocks after it. */
  readonly value: number;
  /** A discard: the previous content may stay. */
  readonly optional: boolean;
}

/** The allowed contents of each block of a generation, or of the disk. */
export interface Allowed {
  readonly values: readonly (readonly number[])[];
  /** The highest reported number. A higher one on the disk belongs to an operation whose report was lost. */
  readonly heard: number;
}

export class RegionOracle {
  readonly blocks: number;
  /** For each block: its content at the last check, and the operations that began since, in order. */
  readonly #before: number[];
  readonly #since: Operation[][];
  #issued = 0;
  #done = 0;
  #flushed = 0;

  constructor(blocks: number) {
    this.blocks = blocks;
    this.#before = new Array<number>(blocks).fill(0);
    this.#since = Array.from({ length: blocks }, () => []);
  }

  /** The newest operation that was acknowledged to the writer. */
  get done(): number {
    return this.#done;
  }
  /** The newest operation that a FLUSH of the writer covers. */
  get flushed(): number {
    return this.#flushed;
  }
  /** The newest reported operation. */
  get issued(): number {
    return this.#issued;
  }

  /** A report of the writer: `w`|`z`|`d` NUMBER AT COUNT before a write, zeroing or discard; `A` NUMBER after it; `F` NUMBER: flushed. */
  hear(line: string): void {
    const [kind, ...words] = line.split(' ');
    const [number = Number.NaN, at = Number.NaN, count = Number.NaN] = words.map(Number);
    assert(Number.isSafeInteger(number), `the writer says "${line}"`);
    if (kind === 'w' || kind === 'z' || kind === 'd') {
      this.#issued = number;
      const value = kind === 'w' ? number : 0;
      for (let block = at; block < at + count; block++)
        this.#since[block]?.push({ number, value, optional: kind === 'd' });
    } else if (kind === 'A') this.#done = number;
    else if (kind === 'F') this.#flushed = number;
    else assert.fail(`the writer says "${line}"`);
  }

  /** The allowed contents if at least all operations up to `survived` survive. */
  allowed(survived: number): Allowed {
    const values = this.#since.map((since, block) => {
      const last = since.findLastIndex(({ number, optional }) => number <= survived && !optional);
      const oldest = last < 0 ? (this.#before[block] ?? 0) : (since[last]?.value ?? 0);
      return [oldest, ...since.slice(last + 1).map(({ value }) => value)];
    });
    return { values, heard: this.#issued };
  }

  /** Takes the checked content as the new base. For a torn block, each of its sectors' contents stays allowed. */
  begin(content: readonly BlockContent[]): void {
    for (const [block, found] of content.entries()) {
      const torn = typeof found === 'number' ? [] : found;
      this.#before[block] = typeof found === 'number' ? found : (torn[0] ?? 0);
      this.#since[block] = torn.map((value) => ({ number: 0, value, optional: true }));
    }
    const numbers = content.flat();
    this.#issued = Math.max(
      this.#issued,
      numbers.reduce((most, number) => Math.max(most, number), 0),
    );
    this.#done = this.#issued;
    this.#flushed = this.#issued;
  }
}

/** @throws AssertionError naming the first blocks with a content that is not allowed */
export function verifyRegion(
  content: readonly BlockContent[],
  { values, heard }: Allowed,
  what: string,
): void {
  const wrong: string[] = [];
  for (const [block, found] of content.entries()) {
    const may = values[block] ?? [];
    const sectors = typeof found === 'number' ? [found] : found;
    if (sectors.every((number) => number > heard || may.includes(number))) continue;
    wrong.push(`block ${block} has ${JSON.stringify(found)}, not ${may.slice(0, 6).join(' or ')}`);
  }
  assert.equal(wrong.length, 0, `${what}: ${wrong.length} blocks are wrong. ${wrong.slice(0, 8).join('; ')}`);
}

/** Parses a region's bytes. Each write repeats its number and the block's number, as little-endian u64. */
export function readRegion(bytes: Buffer): BlockContent[] {
  const content: BlockContent[] = [];
  for (let block = 0; block * BLOCK_BYTES < bytes.length; block++) {
    const sectors = Array.from({ length: SECTORS }, (_, sector) => {
      const at = block * BLOCK_BYTES + sector * SECTOR_BYTES;
      return numberIn(bytes.subarray(at, at + SECTOR_BYTES), block);
    });
    const [first = 0] = sectors;
    content.push(sectors.every((number) => number === first) ? first : sectors);
  }
  return content;
}

function numberIn(sector: Buffer, block: number): number {
  const number = Number(sector.readBigUInt64LE(0));
  const expected = Buffer.alloc(SECTOR_BYTES);
  if (number !== 0) {
    expected.writeBigUInt64LE(BigInt(number), 0);
    expected.writeBigUInt64LE(BigInt(block), 8);
    expected.copyWithin(16, 0, 16);
    for (let at = 16; at < SECTOR_BYTES; at += 16) expected.copyWithin(at, 0, 16);
  }
  // -1: neither zeroes nor a complete write.
  return expected.equals(sector) ? number : -1;
}
