/** Bounded pieces of byte streams as text, never cut inside a character. Pure. */

const isContinuation = (byte: number | undefined) => byte !== undefined && (byte & 0xc0) === 0x80;

/** How many bytes at the end begin a character of UTF-8 that they do not complete. */
export function incompleteEnd(bytes: Uint8Array): number {
  for (let back = 1; back <= Math.min(3, bytes.length); back++) {
    const byte = bytes[bytes.length - back] ?? 0;
    if (isContinuation(byte)) continue;
    const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return length > back ? back : 0;
  }
  return 0;
}

/** How many bytes at the start end a character that began before them. */
function incompleteStart(bytes: Uint8Array): number {
  let count = 0;
  while (count < 3 && isContinuation(bytes[count])) count++;
  return count;
}

export interface Cut {
  /** Where the first byte that is left out stands. */
  readonly at: number;
  readonly bytes: number;
}

/** Keeps the beginning and the end of a stream. */
export class TextWindow {
  readonly #head_bytes: number;
  readonly #tail_bytes: number;
  #head: Buffer = Buffer.alloc(0);
  #tail: Buffer = Buffer.alloc(0);
  #total = 0;

  constructor({ head_bytes, tail_bytes }: { readonly head_bytes: number; readonly tail_bytes: number }) {
    this.#head_bytes = head_bytes;
    this.#tail_bytes = tail_bytes;
  }

  get total(): number {
    return this.#total;
  }

  push(bytes: Uint8Array): void {
    this.#total += bytes.length;
    const room = this.#head_bytes - this.#head.length;
    if (room > 0) this.#head = Buffer.concat([this.#head, bytes.subarray(0, room)]);
    const rest = bytes.subarray(Math.max(0, room));
    if (rest.length === 0) return;
    this.#tail = Buffer.concat([this.#tail, rest.subarray(-this.#tail_bytes)]).subarray(-this.#tail_bytes);
  }

  /** The beginning, the end, and what is missing between them; `cut` is null where nothing is. */
  read(): { readonly head: string; readonly tail: string; readonly cut: Cut | null } {
    const kept = this.#head.length + this.#tail.length;
    if (kept === this.#total)
      return { head: Buffer.concat([this.#head, this.#tail]).toString('utf8'), tail: '', cut: null };
    const head = this.#head.subarray(0, this.#head.length - incompleteEnd(this.#head));
    const tail = this.#tail.subarray(incompleteStart(this.#tail));
    const cut = { at: head.length, bytes: this.#total - head.length - tail.length };
    return { head: head.toString('utf8'), tail: tail.toString('utf8'), cut };
  }
}
