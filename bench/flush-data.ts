/**
 * Generates the bytes that the flush benchmark writes, the same in the guest and here. Every round has new bytes,
 * because a flush does not upload a block that the last generation has already.
 */
import { createCipheriv, createHash, randomBytes } from 'node:crypto';
import { open } from 'node:fs/promises';

export const DATA_BYTES = 256 * 1024 * 1024;
const MIB = 1024 * 1024;
/** Not a multiple of the block size, so that every block of the repeated text differs. */
const TEXT_BYTES = 4 * MIB + 12_345;

export interface FlushData {
  readonly name: 'random' | 'text';
  /** The guest's command that creates the file `$1`. */
  readonly command: string;
  /** The standard input of the command. */
  readonly input: Uint8Array;
  /** The same bytes here, one MiB or so at a time. */
  readonly chunks: () => Generator<Uint8Array>;
}

/** The key stream of AES-128-CTR under a random key: no compressor finds anything in it. */
export function randomData(): FlushData {
  const key = randomBytes(16);
  const iv = Buffer.alloc(16);
  const stream = `head -c ${DATA_BYTES} /dev/zero | openssl enc -aes-128-ctr -K ${key.toString('hex')} -iv ${iv.toString('hex')}`;
  return {
    name: 'random',
    command: `${stream} > "$1"`,
    input: new Uint8Array(0),
    *chunks() {
      const cipher = createCipheriv('aes-128-ctr', key, iv);
      const zeroes = Buffer.alloc(MIB);
      for (let at = 0; at < DATA_BYTES; at += MIB) yield cipher.update(zeroes);
    },
  };
}

/** Log-like lines: a few frequent words, many rare ones, and varying numbers. zstd halves it. */
export function textData(): FlushData {
  const text = makeText();
  return {
    name: 'text',
    command: `cat > /run/text && while cat /run/text; do :; done 2> /dev/null | head -c ${DATA_BYTES} > "$1"; rm /run/text`,
    input: text,
    *chunks() {
      for (let at = 0; at < DATA_BYTES; at += text.length) yield text.subarray(0, DATA_BYTES - at);
    },
  };
}

function makeText(): Uint8Array {
  const random = randomBytes(4 * MIB);
  let at = 0;
  const next = (below: number) => {
    at = (at + 2) % (random.length - 2);
    return random.readUInt16LE(at) % below;
  };
  const letters = 'etaoinshrdlucmfwypvbgkjqxz';
  const words = Array.from({ length: 4_000 }, () =>
    Array.from({ length: 2 + next(9) }, () => letters.charAt(Math.min(next(26), next(26)))).join(''),
  );
  const out = Buffer.alloc(TEXT_BYTES);
  for (let end = 0; end < TEXT_BYTES; ) {
    // The smaller of two random numbers, so that the first words are far more frequent than the last.
    const line = Array.from({ length: 4 + next(12) }, () => words[Math.min(next(4_000), next(4_000))]);
    end += out.write(`${1_700_000_000 + end} ${next(65_536)} ${line.join(' ')}\n`, end, 'latin1');
  }
  return out;
}

/** Writes the bytes to `path` and returns their SHA-256. */
export async function writeHere(path: string, data: FlushData): Promise<string> {
  const hash = createHash('sha256');
  await using file = await open(path, 'w', 0o600);
  for (const chunk of data.chunks()) {
    hash.update(chunk);
    await file.writeFile(chunk);
  }
  await file.sync();
  return hash.digest('hex');
}
