/**
 * Stores and reads the memory of a suspended VM: QEMU's migration stream, cut into parts of 8 MiB. Each part is
 * compressed, and always encrypted, because memory holds secrets that no disk does.
 *
 *   <prefix>/mem/<epoch>-<attempt>/<part>: 0 "berthmem", 8 u32 version, 12 u32 part, 16 key id, 32 salt, 64 sealed zstd
 *   <prefix>/mem/<epoch>-<attempt>/consumed: the name of the one start that may run a guest from it, or instead of it
 *
 * A memory runs at most once: before its guest runs, a start creates `consumed`, which nobody can create again. The
 * database cannot decide this, as it may be restored to an earlier time; for the same reason `consumed` is deleted
 * last. At most PARTS_AT_ONCE parts are in memory. The additional authenticated data of a part has disk, epoch,
 * generation, part number and whether it is the last, so no part can be replaced, left out or cut off.
 */
import { randomBytes } from 'node:crypto';
import { promisify } from 'node:util';
import { constants, zstdCompress, zstdDecompress } from 'node:zlib';
import {
  ObjectExistsError,
  ObjectForbiddenError,
  ObjectNotFoundError,
  ObjectRangeError,
  type ObjectStore,
} from '../object-store/object-store.ts';
import { assert } from '../shared/assert.ts';
import { messageOf } from '../shared/errors.ts';
import {
  type AttemptKey,
  type DataKey,
  type Encryption,
  type KeyRing,
  keyIdBytes,
  newAttemptKey,
  openPart,
  PURPOSE,
  sealPart,
} from './frame-cipher.ts';

export const PART_BYTES = 8 * 1024 * 1024;
const PARTS_AT_ONCE = 3;
const MAGIC = 'berthmem';
const VERSION = 1;
const HEADER_BYTES = 64;
const DISK_ID_BYTES = 64;
/** One chunk each way: zlib's default chunks of 16 KiB take four times as long to decompress. */
const PACK = { chunkSize: PART_BYTES, params: { [constants.ZSTD_c_compressionLevel]: 1 } };
const UNPACK = { chunkSize: PART_BYTES + 1_024, maxOutputLength: PART_BYTES };
const compress = promisify(zstdCompress);
const decompress = promisify(zstdDecompress);

/** The memory image is incomplete, corrupt or another one: the VM cannot resume from it. */
export class MemoryDamagedError extends Error {
  override name = 'MemoryDamagedError';
}

/** Another start has consumed the memory: its guest may have run, so the memory is stale. */
export class MemoryConsumedError extends Error {
  override name = 'MemoryConsumedError';
}

/** The disk and placement that a memory image belongs to. */
export interface MemoryPlace {
  readonly disk_id: string;
  readonly epoch: number;
  readonly generation: number;
}

/** A complete, durable memory image. */
export interface StoredMemory {
  readonly key: string;
  readonly parts: number;
  readonly memory_bytes: number;
  readonly stored_bytes: number;
  readonly encryption: Encryption;
}

interface StoreOptions {
  readonly store: ObjectStore;
  readonly key_prefix: string;
  readonly place: MemoryPlace;
  readonly data_key: DataKey;
  /** A larger stream is refused: QEMU may be compromised. */
  readonly max_bytes: number;
  readonly signal: AbortSignal;
}

/** Stores `stream`, with backpressure. When it fails, the parts are deleted (best effort). */
export async function storeMemory(
  stream: AsyncIterable<Buffer>,
  options: StoreOptions,
): Promise<StoredMemory> {
  const { store, key_prefix, place, data_key, max_bytes, signal } = options;
  const attempt = newAttemptKey(data_key, PURPOSE.memory);
  const key = `${key_prefix}/mem/${place.epoch}-${randomBytes(4).toString('hex')}`;
  const sending = new Set<Promise<void>>();
  let failure: { readonly cause: unknown } | undefined;
  let [parts, memory_bytes, stored_bytes] = [0, 0, 0];
  const send = async (plain: Buffer, last: boolean): Promise<void> => {
    while (sending.size >= PARTS_AT_ONCE) await Promise.race(sending);
    if (failure) throw failure.cause;
    signal.throwIfAborted();
    const part = parts++;
    memory_bytes += plain.length;
    if (memory_bytes > max_bytes) throw new Error(`the memory is larger than ${max_bytes} bytes`);
    const sent = sealMemoryPart(attempt, place, part, last, plain)
      .then(async (body) => {
        stored_bytes += body.reduce((sum, { length }) => sum + length, 0);
        await putOnce(store, partKey(key, part), body, signal);
      })
      .catch((cause: unknown) => {
        failure ??= { cause };
      })
      .finally(() => sending.delete(sent));
    sending.add(sent);
  };
  try {
    let held: Buffer | undefined;
    for await (const part of inParts(stream)) {
      if (held) await send(held, false);
      held = part;
    }
    await send(held ?? Buffer.alloc(0), true);
    await Promise.all(sending);
    if (failure) throw failure.cause;
    return { key, parts, memory_bytes, stored_bytes, encryption: attempt.encryption };
  } catch (error) {
    await Promise.all(sending);
    await discardMemory(store, { key, parts });
    throw error;
  }
}

/** Best effort; the sweep deletes the rest. Ends at the first failure: somebody waits, and a store that is away would fail each part. */
export async function discardMemory(
  store: ObjectStore,
  { key, parts }: { readonly key: string; readonly parts: number },
): Promise<void> {
  try {
    for (let part = 0; part < parts; part++) await store.delete(partKey(key, part));
  } catch {
    // As above.
  }
}

/**
 * The stream of a stored memory image, with a small read-ahead.
 * @throws MemoryDamagedError; store errors
 */
export async function* readMemory(
  memory: Pick<StoredMemory, 'key' | 'parts' | 'encryption'>,
  {
    store,
    place,
    keys,
    signal,
  }: Pick<StoreOptions, 'store' | 'place' | 'signal'> & { readonly keys: KeyRing },
): AsyncGenerator<Buffer, void, undefined> {
  const derived = keys.derive(memory.encryption, PURPOSE.memory);
  if (!derived) throw new MemoryDamagedError('the data key of the memory is missing');
  const attempt = { encryption: memory.encryption, key: derived };
  const fetchPart = async (part: number): Promise<Buffer> => {
    signal.throwIfAborted();
    const stored = await getWhole(store, partKey(memory.key, part), signal);
    return openMemoryPart(attempt, place, part, part === memory.parts - 1, stored);
  };
  const ahead: Promise<Buffer>[] = [];
  for (let part = 0; part < memory.parts; part++) {
    for (let next = part + ahead.length; next < memory.parts && ahead.length < PARTS_AT_ONCE; next++) {
      const fetched = fetchPart(next);
      fetched.catch(() => undefined);
      ahead.push(fetched);
    }
    yield await (ahead.shift() as Promise<Buffer>);
  }
}

/** The key of the object that says who consumed the memory `key`. */
export function consumedKey(key: string): string {
  return `${key}/consumed`;
}

/** The name of the start that consumed the memory; null: none did. @throws ObjectStoreUnavailableError, ObjectForbiddenError */
export async function consumerOf(
  store: Pick<ObjectStore, 'get'>,
  key: string,
  signal: AbortSignal,
): Promise<string | null> {
  try {
    return (await store.get(consumedKey(key), undefined, signal)).toString('utf8');
  } catch (error) {
    // A request that is not permitted says nothing about the object.
    if (!(error instanceof ObjectNotFoundError) || error instanceof ObjectForbiddenError) throw error;
    return null;
  }
}

/**
 * Consumes the memory as `name`, durably. Idempotent for one name, because the answer to an earlier attempt may be lost. A store may
 * ignore that the object is create-only: so it is looked for right before it is written, and read back. On such a store two starts
 * at the same moment could both succeed; the hosts' leases keep them apart.
 * @throws MemoryConsumedError; otherwise it may be consumed
 */
export async function consumeMemory(
  store: Pick<ObjectStore, 'put' | 'get'>,
  key: string,
  name: string,
  signal: AbortSignal,
): Promise<void> {
  const consumer = await consumerOf(store, key, signal);
  if (consumer === null)
    await store.put(consumedKey(key), [Buffer.from(name)], signal).catch((error: unknown) => {
      if (!(error instanceof ObjectExistsError)) throw error;
    });
  if (consumer === name) return;
  if (consumer !== null || (await consumerOf(store, key, signal)) !== name)
    throw new MemoryConsumedError('another start has consumed the memory');
}

function partKey(key: string, part: number): string {
  return `${key}/${part}`;
}

/** Parts of PART_BYTES; the last may be shorter. */
async function* inParts(stream: AsyncIterable<Buffer>): AsyncGenerator<Buffer, void, undefined> {
  let part = Buffer.allocUnsafe(PART_BYTES);
  let filled = 0;
  for await (const chunk of stream) {
    for (let at = 0; at < chunk.length; ) {
      const copied = chunk.copy(part, filled, at);
      at += copied;
      filled += copied;
      if (filled < PART_BYTES) continue;
      yield part;
      part = Buffer.allocUnsafe(PART_BYTES);
      filled = 0;
    }
  }
  if (filled > 0) yield part.subarray(0, filled);
}

async function sealMemoryPart(
  attempt: AttemptKey,
  place: MemoryPlace,
  part: number,
  last: boolean,
  plain: Buffer,
): Promise<Buffer[]> {
  const header = headerOf(attempt, part);
  const packed = await compress(plain, PACK);
  return [header, ...sealPart('memory', attempt.key, part, aadOf(header, place, last), packed)];
}

async function openMemoryPart(
  attempt: AttemptKey,
  place: MemoryPlace,
  part: number,
  last: boolean,
  stored: Buffer,
): Promise<Buffer> {
  const header = headerOf(attempt, part);
  if (!stored.subarray(0, HEADER_BYTES).equals(header))
    throw new MemoryDamagedError(`part ${part} of the memory is another object`);
  const packed = openPart(
    'memory',
    attempt.key,
    part,
    aadOf(header, place, last),
    stored.subarray(HEADER_BYTES),
  );
  if (!packed) throw new MemoryDamagedError(`part ${part} of the memory is damaged`);
  try {
    return await decompress(packed, UNPACK);
  } catch (error) {
    throw new MemoryDamagedError(`part ${part} of the memory cannot be unpacked (${messageOf(error)})`);
  }
}

function headerOf({ encryption }: AttemptKey, part: number): Buffer {
  const header = Buffer.alloc(HEADER_BYTES);
  header.write(MAGIC, 0, 'latin1');
  header.writeUInt32LE(VERSION, 8);
  header.writeUInt32LE(part, 12);
  keyIdBytes(encryption.key_id).copy(header, 16);
  header.set(encryption.salt, 32);
  return header;
}

/** 0 header, 64 disk id, 128 u64 epoch, 136 u64 generation, 144 u8: 1 for the last part. */
function aadOf(header: Buffer, { disk_id, epoch, generation }: MemoryPlace, last: boolean): Buffer {
  assert(disk_id.length <= DISK_ID_BYTES, 'a disk id fits its field');
  const aad = Buffer.alloc(HEADER_BYTES + DISK_ID_BYTES + 17);
  header.copy(aad);
  aad.write(disk_id, 64, 'latin1');
  aad.writeBigUInt64LE(BigInt(epoch), 128);
  aad.writeBigUInt64LE(BigInt(generation), 136);
  aad.writeUInt8(last ? 1 : 0, 144);
  return aad;
}

/** Accepts an existing object: the store's own retry may find that of an attempt whose response was lost. */
async function putOnce(store: ObjectStore, key: string, body: Buffer[], signal: AbortSignal): Promise<void> {
  try {
    await store.put(key, body, signal);
  } catch (error) {
    if (!(error instanceof ObjectExistsError)) throw error;
    const there = await store.get(key, undefined, signal);
    if (!there.equals(Buffer.concat(body))) throw error;
  }
}

async function getWhole(store: ObjectStore, key: string, signal: AbortSignal): Promise<Buffer> {
  try {
    return await store.get(key, undefined, signal);
  } catch (error) {
    if (error instanceof ObjectForbiddenError) throw error;
    if (error instanceof ObjectNotFoundError || error instanceof ObjectRangeError)
      throw new MemoryDamagedError('a part of the memory is missing');
    throw error;
  }
}
