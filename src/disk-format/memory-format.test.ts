import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { FolderStore } from '../object-store/folder-store.ts';
import {
  ObjectForbiddenError,
  type ObjectStore,
  ObjectStoreUnavailableError,
} from '../object-store/object-store.ts';
import { KeyRing, newDataKey } from './frame-cipher.ts';
import {
  consumedKey,
  consumeMemory,
  consumerOf,
  MemoryConsumedError,
  MemoryDamagedError,
  PART_BYTES,
  readMemory,
  storeMemory,
} from './memory-format.ts';

const folder = mkdtempSync(join(tmpdir(), 'bmem-'));
after(() => rmSync(folder, { recursive: true, force: true }));
const store = await FolderStore.open(folder);
const data_key = newDataKey();
const keys = new KeyRing([data_key]);
const { signal } = new AbortController();
const place = { disk_id: 'inst_a', epoch: 3, generation: 7 };
const options = { store, key_prefix: 'disks/inst_a', place, data_key, max_bytes: 64 * PART_BYTES, signal };

async function* chunks(bytes: Buffer, size = 100_000): AsyncGenerator<Buffer> {
  for (let at = 0; at < bytes.length; at += size) yield bytes.subarray(at, at + size);
}
async function read(memory: Parameters<typeof readMemory>[0], other: object = {}): Promise<Buffer> {
  const parts: Buffer[] = [];
  for await (const part of readMemory(memory, { store, place, keys, signal, ...other })) parts.push(part);
  return Buffer.concat(parts);
}
const damaged = (error: unknown) => error instanceof MemoryDamagedError;
const content = Buffer.concat([randomBytes(PART_BYTES), Buffer.alloc(2 * PART_BYTES), randomBytes(1_000)]);

test('a memory image reads back unchanged, and the store holds no plain text of it', async () => {
  const memory = await storeMemory(chunks(content), options);
  assert.deepEqual([memory.parts, memory.memory_bytes], [4, content.length]);
  assert(memory.stored_bytes < content.length);
  assert((await read(memory)).equals(content));
  const stored = readFileSync(join(folder, memory.key, '3'));
  assert(!stored.includes(content.subarray(-32)));
});

test('lengths at part boundaries read back unchanged', async () => {
  for (const length of [0, 1, PART_BYTES, 2 * PART_BYTES]) {
    const bytes = Buffer.alloc(length, 7);
    assert((await read(await storeMemory(chunks(bytes, 3_000_001), options))).equals(bytes), String(length));
  }
});

test('a damaged, missing, swapped or older part is refused', async () => {
  const memory = await storeMemory(chunks(content), options);
  const path = (part: number) => join(folder, memory.key, String(part));
  const parts = [0, 1, 2, 3].map((part) => readFileSync(path(part)));
  const part = (at: number): Buffer => parts[at] ?? assert.fail();
  const flipped = Buffer.from(part(1));
  flipped[100] = (flipped[100] ?? 0) ^ 1;
  for (const wrong of [flipped, part(2), part(1).subarray(0, -1), Buffer.alloc(0)]) {
    writeFileSync(path(1), wrong);
    await assert.rejects(read(memory), damaged);
  }
  writeFileSync(path(1), part(1));
  for (const other of [
    { place: { ...place, generation: 8 } },
    { place: { ...place, epoch: 4 } },
    { place: { ...place, disk_id: 'inst_b' } },
    { keys: new KeyRing([{ ...newDataKey(), key_id: data_key.key_id }]) },
    { keys: KeyRing.none },
  ]) {
    await assert.rejects(read(memory, other), damaged);
  }
  // Cut off: the last but one is not accepted as the last.
  await assert.rejects(read({ ...memory, parts: 3 }), damaged);
  rmSync(path(3));
  await assert.rejects(read(memory), damaged);
});

test('a failing store or stream is reported, and leaves no object behind', async () => {
  let puts = 0;
  const failing: Pick<ObjectStore, 'put' | 'delete'> = {
    put: async (...args) => {
      if (++puts === 2) throw new ObjectStoreUnavailableError('away');
      return store.put(...args);
    },
    delete: (key) => store.delete(key),
  };
  const elsewhere = { ...options, key_prefix: 'disks/inst_c' };
  await assert.rejects(storeMemory(chunks(content), { ...elsewhere, store: failing as ObjectStore }), /away/);
  async function* broken(): AsyncGenerator<Buffer> {
    yield* chunks(content);
    throw new Error('QEMU went away');
  }
  await assert.rejects(storeMemory(broken(), elsewhere), /QEMU went away/);
  await assert.rejects(storeMemory(chunks(content), { ...elsewhere, max_bytes: PART_BYTES }), /larger/);
  const left: string[] = [];
  for await (const { key } of store.list('disks/inst_c/')) left.push(key);
  assert.deepEqual(left, []);
});

test('of fifty starts at once one consumes a memory, and a repeat of it succeeds', async () => {
  const key = 'disks/inst_a/mem/1-0000000a';
  assert.equal(await consumerOf(store, key, signal), null);
  const starts = Array.from({ length: 50 }, (_, i) => `start ${i}`);
  const results = await Promise.allSettled(starts.map((name) => consumeMemory(store, key, name, signal)));
  const winners = starts.filter((_, i) => results[i]?.status === 'fulfilled');
  for (const each of results)
    assert(each.status === 'fulfilled' || each.reason instanceof MemoryConsumedError);
  assert.deepEqual(winners, [await consumerOf(store, key, signal)]);
  await consumeMemory(store, key, winners[0] ?? '', signal);
});

test('a start whose answer was lost finds that it has consumed the memory', async () => {
  const key = 'disks/inst_a/mem/1-0000000b';
  const lossy: Pick<ObjectStore, 'put' | 'get'> = {
    put: async (...args) => {
      await store.put(...args);
      throw new ObjectStoreUnavailableError('no answer');
    },
    get: (...args) => store.get(...args),
  };
  await assert.rejects(consumeMemory(lossy, key, 'it', signal), ObjectStoreUnavailableError);
  await consumeMemory(store, key, 'it', signal);
  await assert.rejects(consumeMemory(store, key, 'another', signal), MemoryConsumedError);
});

test('a store that ignores that a write is create-only gives a memory to the last writer alone', async () => {
  const key = 'disks/inst_a/mem/1-0000000c';
  const ignoring: Pick<ObjectStore, 'put' | 'get'> = {
    put: async (at, body) => {
      await store.delete(at);
      await store.put(at, body);
      await store.delete(at);
      await store.put(at, [Buffer.from('another')]);
    },
    get: (...args) => store.get(...args),
  };
  await assert.rejects(consumeMemory(ignoring, key, 'it', signal), MemoryConsumedError);
});

test('a store that does not let this host look never says that a memory is unused', async () => {
  const closed: Pick<ObjectStore, 'get'> = {
    get: async () => {
      throw new ObjectForbiddenError('not permitted');
    },
  };
  await assert.rejects(consumerOf(closed, 'disks/inst_a/mem/1-0000000d', signal), ObjectForbiddenError);
});

test('what says that a memory was consumed is listed after its parts, so that it is removed after them', async () => {
  const { key } = await storeMemory(chunks(content), options);
  await consumeMemory(store, key, 'it', signal);
  const listed: string[] = [];
  for await (const entry of store.list(`${key}/`)) listed.push(entry.key);
  assert.equal(listed.length, 5);
  assert.equal(listed.at(-1), consumedKey(key));
});
