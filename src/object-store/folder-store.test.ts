import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtemp, readdir, rm, stat, utimes, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, test } from 'node:test';
import { InvariantError } from '../lib/assert.ts';
import { FolderStore } from './folder-store.ts';
import {
  ObjectExistsError,
  ObjectNotFoundError,
  ObjectRangeError,
  ObjectStoreUnavailableError,
} from './object-store.ts';

let root: string;
let store: FolderStore;

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'berth-store-'));
  store = await FolderStore.open(join(root, 'a', 'store'));
});
afterEach(() => rm(root, { recursive: true, force: true }));

const temporaryFiles = (): Promise<string[]> => readdir(join(root, 'a', 'store', '.tmp'));

test('an object is read back as it was written, whole and by range', async () => {
  const body = randomBytes(100_000);
  await store.put('x/y/z', [body.subarray(0, 7), body.subarray(7)]);
  assert.deepEqual(await store.get('x/y/z'), body);
  assert.deepEqual(await store.get('x/y/z', { offset: 99_990, length: 10 }), body.subarray(99_990));
  assert.equal(await store.size('x/y/z'), 100_000);
  assert.deepEqual(await temporaryFiles(), []);
});

test('an object is never overwritten, whoever comes first', async () => {
  const bodies = Array.from({ length: 8 }, (_, i) => Buffer.from(`writer ${i}`));
  const outcomes = await Promise.allSettled(bodies.map((body) => store.put('k/one', [body])));
  const winners = outcomes.flatMap(({ status }, i) => (status === 'fulfilled' ? [i] : []));
  assert.equal(winners.length, 1);
  for (const outcome of outcomes) {
    if (outcome.status === 'rejected') assert(outcome.reason instanceof ObjectExistsError);
  }
  assert.equal((await store.get('k/one')).toString(), `writer ${winners[0]}`);
  assert.deepEqual(await temporaryFiles(), []);
});

test('a range past the end is an error, and so is an object that is not there', async () => {
  await store.put('k', [Buffer.from('12345')]);
  await assert.rejects(store.get('k', { offset: 4, length: 2 }), ObjectRangeError);
  await assert.rejects(store.get('none'), ObjectNotFoundError);
  await assert.rejects(store.get('k/below'), ObjectNotFoundError);
  await assert.rejects(store.size('none/at/all'), ObjectNotFoundError);
  await store.put('d/e', []);
  await assert.rejects(store.get('d'), ObjectNotFoundError);
  await assert.rejects(store.put('k/below', []), ObjectExistsError);
});

test('a listing has all objects below its prefix, and no temporary files', async () => {
  for (const key of ['p/1', 'p/q/2', 'p/q/r/3', 'pp/4']) await store.put(key, [Buffer.from(key)]);
  const keys: string[] = [];
  for await (const { key, size_bytes } of store.list('p/')) {
    assert.equal(size_bytes, key.length);
    keys.push(key);
  }
  assert.deepEqual(keys, ['p/1', 'p/q/2', 'p/q/r/3']);
  for await (const entry of store.list('none/')) assert.fail(entry.key);
});

test('a deleted object is gone, and deleting it again is no error', async () => {
  await store.put('k', []);
  await store.delete('k');
  await store.delete('k');
  await assert.rejects(store.get('k'), ObjectNotFoundError);
});

test('a key cannot leave the folder', async () => {
  for (const key of ['../x', 'a/../x', '/x', 'a//b', '.tmp/x', 'a/', '', 'a\0b']) {
    await assert.rejects(store.put(key, []), InvariantError, key);
    await assert.rejects(store.get(key), InvariantError, key);
  }
});

test('a write that is aborted leaves nothing behind', async () => {
  const stop = new AbortController();
  const put = store.put('k', [randomBytes(1_000_000), randomBytes(1_000_000)], stop.signal);
  stop.abort();
  await assert.rejects(put, { name: 'AbortError' });
  await assert.rejects(store.get('k'), ObjectNotFoundError);
  assert.deepEqual(await temporaryFiles(), []);
});

test('temporary files of a crash are swept at open, once they are an hour old', async () => {
  const folder = join(root, 'a', 'store', '.tmp');
  await writeFile(join(folder, 'old'), 'x');
  await writeFile(join(folder, 'young'), 'x');
  const long_ago = Date.now() / 1000 - 3_700;
  await utimes(join(folder, 'old'), long_ago, long_ago);
  await FolderStore.open(join(root, 'a', 'store'));
  assert.deepEqual(await temporaryFiles(), ['young']);
});

test('a folder that cannot be written is "unavailable", and the message names it', async () => {
  // sysfs lets nobody make files, root included
  await assert.rejects(
    FolderStore.open('/sys/berth-test'),
    (error) =>
      error instanceof ObjectStoreUnavailableError && /^folder \/sys\/berth-test: .+/.test(error.message),
  );
});

test('folders and files are for their owner only', async () => {
  await store.put('p/q', [Buffer.from('x')]);
  for (const [path, mode] of [
    ['p', 0o700],
    ['p/q', 0o600],
    ['.tmp', 0o700],
  ] as const) {
    assert.equal((await stat(join(root, 'a', 'store', path))).mode & 0o777, mode, path);
  }
});

test('the check succeeds on a working folder and leaves nothing', async () => {
  await store.check();
  for await (const entry of store.list('')) assert.fail(entry.key);
});
