/** Parts of files of a guest. */
import { type Berth, BerthError } from '../../client/src/berth.ts';

interface Wanted {
  /** Of the instance. */
  readonly id: string;
  readonly path: string;
  readonly offset: number;
  readonly length: number;
}

export interface Part {
  readonly bytes: Buffer;
  /** Of the file; null: not known, and there is more. */
  readonly size: number | null;
}

export async function readPart(
  berth: Berth,
  { id, path, offset, length }: Wanted,
  signal: AbortSignal,
): Promise<Part> {
  let response: Response;
  try {
    response = await berth.files(id).read(path, { start: offset, end: offset + length, signal });
  } catch (error) {
    const is_empty = error instanceof BerthError && error.code === 'RANGE_NOT_SATISFIABLE' && offset === 0;
    if (!is_empty) throw error;
    return { bytes: Buffer.alloc(0), size: 0 };
  }
  const [, size] = /\/(\d+)$/.exec(response.headers.get('content-range') ?? '') ?? [];
  if (size !== undefined) return { bytes: await firstBytes(response, 0, length), size: Number(size) };
  // A file whose size the guest does not tell, as those of /proc, comes from its beginning.
  const bytes = await firstBytes(response, offset, length + 1);
  if (bytes.length > length) return { bytes: bytes.subarray(0, length), size: null };
  return { bytes, size: offset + bytes.length };
}

/** `length` bytes of the body after `skip`, or what there is. The rest is not read. */
async function firstBytes({ body }: Response, skip: number, length: number): Promise<Buffer> {
  const pieces: Uint8Array[] = [];
  let to_skip = skip;
  let missing = length;
  // Leaving the loop cancels the body.
  for await (const chunk of body ?? []) {
    const piece = chunk.subarray(to_skip, to_skip + missing);
    to_skip = Math.max(0, to_skip - chunk.length);
    missing -= piece.length;
    pieces.push(piece);
    if (missing === 0) break;
  }
  return Buffer.concat(pieces);
}
