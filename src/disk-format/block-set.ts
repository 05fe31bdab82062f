/** A set of block numbers as a bitmap in pages of 32,768 blocks (2 GiB of disk, 4 KiB of memory), made on demand. */
const PAGE_BITS = 15;
const PAGE_MASK = (1 << PAGE_BITS) - 1;

export class BlockSet {
  readonly #pages = new Map<number, Uint32Array>();
  #count = 0;

  get count(): number {
    return this.#count;
  }

  has(block: number): boolean {
    const page = this.#pages.get(Math.floor(block / (PAGE_MASK + 1)));
    const word = page?.[(block & PAGE_MASK) >>> 5] ?? 0;
    return (word & (1 << (block & 31))) !== 0;
  }

  /** Adds `block`. Returns whether it was new. */
  add(block: number): boolean {
    const number = Math.floor(block / (PAGE_MASK + 1));
    let page = this.#pages.get(number);
    if (!page) {
      page = new Uint32Array((PAGE_MASK + 1) / 32);
      this.#pages.set(number, page);
    }
    const word = (block & PAGE_MASK) >>> 5;
    const bit = 1 << (block & 31);
    const before = page[word] ?? 0;
    if ((before & bit) !== 0) return false;
    page[word] = before | bit;
    this.#count += 1;
    return true;
  }
}
