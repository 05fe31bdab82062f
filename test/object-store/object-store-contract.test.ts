/** What every object store does, of both kinds there are: a folder, and a bucket of a real S3 server. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, beforeEach, describe, test } from 'node:test';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import {
  ObjectExistsError,
  ObjectNotFoundError,
  ObjectRangeError,
  type ObjectStore,
} from '../../src/object-store/object-store.ts';
import { S3Store } from '../../src/object-store/s3-store.ts';
import { InvariantError } from '../../src/shared/assert.ts';
import { S3Server } from '../support/s3-server.ts';

async function entries(store: ObjectStore, prefix: string): Promise<(readonly [string, number])[]> {
  const found: (readonly [string, number])[] = [];
  for await (const { key, size_bytes } of store.list(prefix)) found.push([key, size_bytes]);
  return found;
}

/** `open` gives an empty store each time. */
function contract(open: () => Promise<ObjectStore>): void {
  let store: ObjectStore;
  beforeEach(async () => {
    store = await open();
  });

  test('an object reads back as written, as a whole and by range', async () => {
    const body = randomBytes(100_000);
    await store.put('x/y/z', [body.subarray(0, 7), body.subarray(7)]);
    assert.deepEqual(await store.get('x/y/z'), body);
    assert.deepEqual(await store.get('x/y/z', { offset: 99_990, length: 10 }), body.subarray(99_990));
    assert.deepEqual(await store.get('x/y/z', { offset: 0, length: 1 }), body.subarray(0, 1));
    assert.equal(await store.size('x/y/z'), 100_000);
  });

  test("an object of a segment's maximum size is written and read", async () => {
    const body = randomBytes(17 * 2 ** 20);
    await store.put('large', [body]);
    assert((await store.get('large')).equals(body));
    const range = { offset: 16 * 2 ** 20 - 3, length: 2 ** 20 };
    assert(
      (await store.get('large', range)).equals(body.subarray(range.offset, range.offset + range.length)),
    );
  });

  test('an empty object and an empty range read as no bytes', async () => {
    await store.put('empty', []);
    assert.equal((await store.get('empty')).length, 0);
    assert.equal(await store.size('empty'), 0);
    assert.equal((await store.get('empty', { offset: 0, length: 0 })).length, 0);
    await assert.rejects(store.get('empty', { offset: 1, length: 0 }), ObjectRangeError);
    await assert.rejects(store.get('none', { offset: 0, length: 0 }), ObjectNotFoundError);
  });

  test('of fifty concurrent creates of one key exactly one succeeds, and its bytes are stored', async () => {
    const bodies = Array.from({ length: 50 }, (_, i) => Buffer.from(`writer ${i}`));
    const outcomes = await Promise.allSettled(bodies.map((body) => store.put('k/one', [body])));
    const winners = outcomes.flatMap(({ status }, i) => (status === 'fulfilled' ? [i] : []));
    assert.equal(winners.length, 1);
    for (const outcome of outcomes) {
      if (outcome.status === 'rejected') assert(outcome.reason instanceof ObjectExistsError, outcome.reason);
    }
    assert.equal((await store.get('k/one')).toString(), `writer ${winners[0]}`);
    await assert.rejects(store.put('k/one', [Buffer.from('late')]), ObjectExistsError);
    assert.deepEqual(await entries(store, ''), [['k/one', `writer ${winners[0]}`.length]]);
  });

  test('a range past the end is an error, and so is a missing object', async () => {
    await store.put('k', [Buffer.from('12345')]);
    await assert.rejects(store.get('k', { offset: 4, length: 2 }), ObjectRangeError);
    await assert.rejects(store.get('k', { offset: 5, length: 1 }), ObjectRangeError);
    await assert.rejects(store.get('k', { offset: 500, length: 100 }), ObjectRangeError);
    await assert.rejects(store.get('none'), ObjectNotFoundError);
    await assert.rejects(store.get('none', { offset: 0, length: 1 }), ObjectNotFoundError);
    await assert.rejects(store.size('none/at/all'), ObjectNotFoundError);
    await store.put('d/e', []);
    await assert.rejects(store.get('d'), ObjectNotFoundError);
  });

  test('a listing has all objects below its prefix, each once', async () => {
    for (const key of ['p/1', 'p/q/2', 'p/q/r/3', 'pp/4']) await store.put(key, [Buffer.from(key)]);
    assert.deepEqual(await entries(store, 'p/'), [
      ['p/1', 3],
      ['p/q/2', 5],
      ['p/q/r/3', 7],
    ]);
    assert.deepEqual(await entries(store, 'none/'), []);
    const keys = Array.from({ length: 25 }, (_, i) => `many/${i + 10}`);
    await Promise.all(keys.map((key) => store.put(key, [])));
    assert.deepEqual(
      (await entries(store, 'many/')).map(([key]) => key),
      keys,
    );
    assert.equal((await entries(store, '')).length, 29);
  });

  test('a listing has the date of each object', async () => {
    const before_ms = Date.now() - 5_000;
    await store.put('when/it/was', [Buffer.from('x')]);
    for await (const { key, modified_at } of store.list('when/')) {
      assert.equal(key, 'when/it/was');
      // A store's clock is its own; here it is this machine's.
      const at_ms = modified_at.getTime();
      assert(at_ms > before_ms && at_ms < Date.now() + 5_000, modified_at.toISOString());
      return;
    }
    assert.fail('it is not listed');
  });

  test('a deleted object is gone, deleting it again succeeds, and its key is free', async () => {
    await store.put('k', [Buffer.from('old')]);
    await store.delete('k');
    await store.delete('k');
    await assert.rejects(store.get('k'), ObjectNotFoundError);
    await store.put('k', [Buffer.from('new')]);
    assert.equal((await store.get('k')).toString(), 'new');
  });

  test('an invalid key is refused', async () => {
    for (const key of ['../x', 'a/../x', '/x', 'a//b', '.tmp/x', 'a/', '', 'a\0b', 'a?b', 'ä']) {
      await assert.rejects(store.put(key, []), InvariantError, key);
      await assert.rejects(store.get(key), InvariantError, key);
      await assert.rejects(store.delete(key), InvariantError, key);
    }
  });

  test('an aborted write or read fails with the reason of its signal', async () => {
    const stop = new AbortController();
    const put = store.put('k', [randomBytes(1_000_000), randomBytes(1_000_000)], stop.signal);
    stop.abort();
    await assert.rejects(put, { name: 'AbortError' });
    await assert.rejects(store.get('k', undefined, stop.signal), { name: 'AbortError' });
    await assert.rejects(store.put('l', [], AbortSignal.abort(new Error('enough'))), /^Error: enough$/);
    await assert.rejects(store.get('l'), ObjectNotFoundError);
  });

  test('the check succeeds repeatedly, and leaves nothing', async () => {
    await store.check();
    await store.check();
    assert.deepEqual(await entries(store, ''), []);
  });
}

describe('a folder as an object store', () => {
  const folders: string[] = [];
  after(() => Promise.all(folders.map((folder) => rm(folder, { recursive: true, force: true }))));

  contract(async () => {
    const folder = await mkdtemp(join(tmpdir(), 'berth-store-'));
    folders.push(folder);
    return FolderStore.open(folder);
  });
});

describe('a bucket of S3 as an object store', { timeout: 300_000 }, () => {
  let server: S3Server;
  const stores: S3Store[] = [];
  before(async () => {
    server = await S3Server.start();
  });
  after(async () => {
    for (const store of stores) store.close();
    await server?.close();
  });

  contract(async () => {
    const store = new S3Store(await server.bucket(), { page_keys: 10 });
    stores.push(store);
    return store;
  });
});
