/** Files of lines, compressed with zstd, and the hash of the compressed file. */
import { createHash } from 'node:crypto';
import { createReadStream, createWriteStream } from 'node:fs';
import { createInterface } from 'node:readline';
import { Readable, Transform } from 'node:stream';
import { pipeline } from 'node:stream/promises';
import { createZstdCompress, createZstdDecompress } from 'node:zlib';

/** Returns the SHA-256 of the file. Does not sync it. */
export async function writeLines(
  path: string,
  lines: AsyncIterable<string> | Iterable<string>,
  signal?: AbortSignal,
): Promise<string> {
  const hash = createHash('sha256');
  const hashing = new Transform({
    transform(chunk: Buffer, _encoding, done) {
      hash.update(chunk);
      done(null, chunk);
    },
  });
  async function* ended(): AsyncGenerator<string> {
    for await (const line of lines) yield `${line}\n`;
  }
  await pipeline(
    Readable.from(ended()),
    createZstdCompress(),
    hashing,
    createWriteStream(path, { flags: 'wx', mode: 0o600 }),
    ...(signal ? [{ signal }] : []),
  );
  return hash.digest('hex');
}

export async function fileSha256(path: string, signal?: AbortSignal): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of createReadStream(path, {
    highWaterMark: 1024 * 1024,
    ...(signal ? { signal } : {}),
  }))
    hash.update(chunk as Buffer);
  return hash.digest('hex');
}

export async function* readLines(path: string): AsyncGenerator<string> {
  const unpacked = createZstdDecompress();
  const reading = pipeline(createReadStream(path), unpacked);
  reading.catch(() => undefined); // told below, by the lines' own end
  for await (const line of createInterface({ input: unpacked, crlfDelay: Number.POSITIVE_INFINITY }))
    yield line;
  await reading;
}
