/**
 * Keeps the end of an exec's output in files of this host, which outlive agent and boot. A file, `<exec id>.<offset of
 * its first byte>`, has about 1 MiB of pieces. A piece is stream (1 byte), length (3 bytes), bytes. Also reads and
 * writes the exec's record, `<exec id>.json`.
 *
 * Invariants:
 * - The kept output has no gap.
 * - At least the last OUTPUT_KEPT_BYTES are kept, and at most one file more; for a reader that the exec waits for, at
 *   most twice as much.
 * - A full disk never holds up the exec. It loses output, which shows as a later first offset.
 */
import {
  appendFileSync,
  readdirSync,
  readFileSync,
  renameSync,
  rmSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { join } from 'node:path';
import { type ExecEnd, OUTPUT_KEPT_BYTES } from '../../protocol/exec-types.ts';
import { errnoOf } from '../../shared/errors.ts';
import { type ExecId, isId } from '../../shared/ids.ts';

const FILE_BYTES = 1024 * 1024;
const HEADER_BYTES = 4;

export interface OutputPiece {
  readonly offset: number;
  /** 1: stdout, 2: stderr. */
  readonly stream: number;
  readonly data: Buffer;
}

export class ExecOutput {
  readonly #folder: string;
  readonly #id: string;
  /** Offsets of the files' first bytes, ascending. */
  #files: number[] = [];
  #end = 0;
  /** A reader wants it from here on. */
  wanted_from = Number.POSITIVE_INFINITY;
  /** The pieces of the last file, while somebody reads them. */
  #tail: OutputPiece[] | null = null;

  /** `reached`: the end, as far as it was noted; a file may have more, or may be gone. */
  constructor(folder: string, id: string, reached: number) {
    this.#folder = folder;
    this.#id = id;
    this.#files = readdirSync(folder)
      .filter((name) => name.startsWith(`${id}.`) && /\.[0-9]+$/.test(name))
      .map((name) => Number(name.slice(id.length + 1)))
      .sort((one, other) => one - other);
    const file = this.#files.at(-1);
    const pieces = this.#readFile(file);
    this.#end = pieces.reduce((end, { data }) => end + data.length, file ?? reached);
    // What is appended would be taken for the rest of a piece that a kill has cut off.
    if (file !== undefined) truncateSync(this.#path(file), fileBytes(pieces));
    if (this.#files.length > 0 && this.#end < reached) this.drop(reached);
  }

  /** The offset of the first kept byte. */
  get start(): number {
    return this.#files[0] ?? this.#end;
  }
  get end(): number {
    return this.#end;
  }
  get kept_bytes(): number {
    return this.#end - this.start;
  }

  /** Keeps the pieces that are read most in memory. */
  set followed(is_so: boolean) {
    this.#tail = is_so ? (this.#tail ?? this.#readFile(this.#files.at(-1))) : null;
  }

  /** Bytes that it has already are skipped. A piece beyond the end means that the guest has dropped what was between. */
  append(offset: number, stream: number, bytes: Buffer): void {
    const data = offset < this.#end ? bytes.subarray(this.#end - offset) : bytes;
    if (data.length === 0) return;
    if (offset > this.#end) this.drop(offset);
    let file = this.#files.at(-1);
    if (file === undefined || this.#end - file >= FILE_BYTES) {
      file = this.#end;
      this.#files.push(file);
      if (this.#tail) this.#tail = [];
      while (this.#files.length > 1 && !this.#isWanted(this.#files[1] ?? 0)) this.dropFirst();
    }
    const header = Buffer.alloc(HEADER_BYTES);
    header.writeUInt32BE(data.length);
    header.writeUInt8(stream);
    try {
      appendFileSync(this.#path(file), Buffer.concat([header, data]), { mode: 0o600 });
    } catch {
      this.drop(this.#end + data.length);
      return;
    }
    this.#tail?.push({ offset: this.#end, stream, data });
    this.#end += data.length;
  }

  /** The pieces from `offset`, or from the first kept byte, to the end of one file. None: there are no more. */
  read(offset: number): readonly OutputPiece[] {
    const from = Math.max(offset, this.start);
    if (from >= this.#end) return [];
    const file = this.#files.findLast((each) => each <= from);
    const is_last = file === this.#files.at(-1);
    const pieces = is_last && this.#tail ? this.#tail : this.#readFile(file);
    const wanted = pieces.slice(indexAt(pieces, from));
    const [first] = wanted;
    if (first && first.offset < from)
      wanted[0] = { ...first, offset: from, data: first.data.subarray(from - first.offset) };
    return wanted;
  }

  /** Drops the first file. */
  dropFirst(): void {
    const file = this.#files.shift();
    if (file !== undefined) rmSync(this.#path(file), { force: true });
    if (this.#files.length === 0 && this.#tail) this.#tail = [];
  }

  /** Drops everything before `end`, which becomes the end. */
  drop(end = this.#end): void {
    while (this.#files.length > 0) this.dropFirst();
    this.#end = end;
  }

  /** Whether the file before the one that begins at `next` must stay. */
  #isWanted(next: number): boolean {
    const kept_bytes = this.#end - next;
    return kept_bytes < OUTPUT_KEPT_BYTES || (next > this.wanted_from && kept_bytes < 2 * OUTPUT_KEPT_BYTES);
  }

  #path(file: number): string {
    return join(this.#folder, `${this.#id}.${file}`);
  }

  /** Its whole pieces: the last one may be cut off by a crash of the host. */
  #readFile(file: number | undefined): OutputPiece[] {
    if (file === undefined) return [];
    const pieces: OutputPiece[] = [];
    let bytes: Buffer;
    try {
      bytes = readFileSync(this.#path(file));
    } catch (error) {
      if (errnoOf(error) === 'ENOENT') return [];
      throw error;
    }
    let offset = file;
    for (let at = 0; at + HEADER_BYTES <= bytes.length; ) {
      const stream = bytes.readUInt8(at);
      const length = bytes.readUIntBE(at + 1, 3);
      const data = bytes.subarray(at + HEADER_BYTES, at + HEADER_BYTES + length);
      if (data.length < length) break;
      pieces.push({ offset, stream, data });
      offset += length;
      at += HEADER_BYTES + length;
    }
    return pieces;
  }
}

function fileBytes(pieces: readonly OutputPiece[]): number {
  return pieces.reduce((bytes, { data }) => bytes + HEADER_BYTES + data.length, 0);
}

/** The index of the piece with the byte at `offset`. */
function indexAt(pieces: readonly OutputPiece[], offset: number): number {
  let [low, high] = [0, pieces.length - 1];
  while (low < high) {
    const middle = Math.ceil((low + high) / 2);
    if ((pieces[middle]?.offset ?? 0) <= offset) low = middle;
    else high = middle - 1;
  }
  return low;
}

export interface ExecRecord {
  readonly id: ExecId;
  /** The supervisor that runs it; null: none has said so yet. */
  readonly session: string | null;
  /** Null: it runs, as far as is known. */
  readonly end: ExecEnd | null;
  readonly output_bytes: number;
  /** Its input came over a stream, and ends a while after that was lost. */
  readonly streamed_input: boolean;
  /** The control plane knows the end. */
  readonly reported: boolean;
}

/**
 * What this host knows of an exec, in `<exec id>.json` beside its output. It is written at the start and at the end.
 * Not durable: a power loss ends the boot too.
 */
export function writeExecRecord(folder: string, record: ExecRecord): void {
  const path = join(folder, `${record.id}.json`);
  writeFileSync(`${path}.new`, JSON.stringify(record), { mode: 0o600 });
  renameSync(`${path}.new`, path);
}

export function removeExecRecord(folder: string, id: ExecId): void {
  rmSync(join(folder, `${id}.json`), { force: true });
}

/** Oldest first. A damaged one is left out. */
export function readExecRecords(folder: string): ExecRecord[] {
  return readdirSync(folder)
    .filter((name) => name.endsWith('.json') && isId('exec', name.slice(0, -5)))
    .sort()
    .flatMap((name) => {
      try {
        return [JSON.parse(readFileSync(join(folder, name), 'utf8')) as ExecRecord];
      } catch {
        return [];
      }
    });
}
