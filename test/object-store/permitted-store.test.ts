/** The bucket for a host without credentials: each request is signed by somebody else, in few questions, and behaves as the bucket does. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, afterEach, before, beforeEach, describe, test } from 'node:test';
import { CompressPool } from '../../src/disk-format/compress-pool.ts';
import { KeyRing, newDataKey } from '../../src/disk-format/frame-cipher.ts';
import { loadMap } from '../../src/disk-format/load-map.ts';
import { BLOCK_BYTES } from '../../src/disk-format/segment-format.ts';
import { FlushSink } from '../../src/host/disk/flush-sink.ts';
import {
  ObjectExistsError,
  ObjectNotFoundError,
  ObjectRangeError,
  ObjectStoreUnavailableError,
} from '../../src/object-store/object-store.ts';
import { PermittedStore, REQUESTS_MAX } from '../../src/object-store/permitted-store.ts';
import { NotPermittedYetError } from '../../src/object-store/s3-requests.ts';
import { S3Store } from '../../src/object-store/s3-store.ts';
import type { ObjectRequest, SignedRequest } from '../../src/object-store/sign-request.ts';
import { restoreDisk } from '../support/restore-disk.ts';
import { S3Server } from '../support/s3-server.ts';
import { type Toxic, ToxicProxy } from '../support/toxic-proxy.ts';

const PATIENCE = { backoff_base_ms: 5, backoff_max_ms: 20 };

describe('a bucket by permission', { timeout: 300_000 }, () => {
  const pool = new CompressPool();
  let server: S3Server;
  let proxy: ToxicProxy;
  /** With the credentials. */
  let owner: S3Store;
  let store: PermittedStore;
  let asked: (readonly ObjectRequest[])[];
  let answer: (request: ObjectRequest) => Promise<SignedRequest | null>;

  before(async () => {
    server = await S3Server.start();
    proxy = await ToxicProxy.open(server.port);
  });
  after(async () => {
    await proxy?.cut();
    await server?.close();
    await pool.close();
  });
  beforeEach(async () => {
    owner = new S3Store(await server.bucket(proxy.endpoint), { patience: PATIENCE });
    asked = [];
    answer = (request) => owner.sign(request);
    store = new PermittedStore((requests) => {
      asked.push(requests);
      return Promise.all(requests.map((request) => answer(request)));
    }, PATIENCE);
  });
  afterEach(() => {
    proxy.heal();
    store.close();
    owner.close();
  });

  test('objects are written once, and read as a whole and by range', async () => {
    const body = randomBytes(100_000);
    await store.put('x/y', [body.subarray(0, 7), body.subarray(7)]);
    assert((await owner.get('x/y')).equals(body));
    await assert.rejects(store.put('x/y', [Buffer.from('other')]), ObjectExistsError);
    assert((await store.get('x/y')).equals(body));
    assert((await store.get('x/y', { offset: 99_990, length: 10 })).equals(body.subarray(99_990)));
    await assert.rejects(store.get('x/y', { offset: 99_999, length: 2 }), ObjectRangeError);
    await assert.rejects(store.get('x/z'), ObjectNotFoundError);
    assert.equal(await store.size('x/y'), 100_000);
    assert.equal((await store.get('x/y', { offset: 7, length: 0 })).length, 0);
    await assert.rejects(store.put('empty', []), { name: 'InvariantError' }, 'nobody signs that');
  });

  test('requests that come together are asked for together, and reads are asked for once', async () => {
    const keys = Array.from({ length: 2 * REQUESTS_MAX }, (_, i) => `many/${i}`);
    for (const key of keys.slice(0, 30)) await owner.put(key, [Buffer.from(key)]);
    const read = () => Promise.all(keys.slice(0, 30).map(async (key) => String(await store.get(key))));
    assert.deepEqual(await read(), keys.slice(0, 30));
    assert.equal(asked.length, 1);
    assert.deepEqual(await read(), keys.slice(0, 30));
    assert.equal(asked.length, 1, 'again without a question');
    await Promise.all(keys.map((key) => store.put(`new/${key}`, [Buffer.from(key)])));
    assert(asked.every(({ length }) => length <= REQUESTS_MAX));
    assert(asked.length < 1 + keys.length / 4, `${asked.length} questions`);
  });

  test('a read that the store refuses is signed anew', async () => {
    await owner.put('k', [Buffer.from('v')]);
    assert.equal(String(await store.get('k')), 'v');
    proxy.poison(({ number }) =>
      number === 1 ? { answer: { status: 403, code: 'RequestTimeTooSkewed' } } : undefined,
    );
    assert.equal(String(await store.get('k')), 'v');
    assert.equal(asked.length, 2);
  });

  test('what is not permitted: a read is of a missing object, a write fails, and nothing reaches the store', async () => {
    answer = async () => null;
    proxy.heal();
    await assert.rejects(store.get('k'), ObjectNotFoundError);
    await assert.rejects(store.put('k', [Buffer.from('v')]), ObjectStoreUnavailableError);
    await assert.rejects(store.delete(), ObjectStoreUnavailableError);
    await assert.rejects(async () => {
      for await (const _ of store.list());
    }, ObjectStoreUnavailableError);
    assert.deepEqual(proxy.seen, []);
  });

  test('while the control plane is away a write waits, and then succeeds', async () => {
    let away = 3;
    answer = async (request) => {
      if (away-- > 0) throw new NotPermittedYetError('the control plane does not answer');
      return owner.sign(request);
    };
    await store.put('k', [Buffer.from('v')]);
    assert.equal(asked.length, 4);
  });

  test('a write that waits for permission ends with its signal', async () => {
    const stop = new AbortController();
    answer = () => {
      stop.abort(new Error('enough'));
      return new Promise(() => undefined);
    };
    await assert.rejects(store.put('k', [Buffer.from('v')], stop.signal), /enough/);
  });

  const FAULTS: readonly (readonly [string, Toxic])[] = [
    ['loses the answer', { lose_answer: true }],
    ['changes a bit', { flip_request_at: 200_000 }],
    ['answers 503', { answer: { status: 503, code: 'SlowDown' } }],
  ];
  for (const [name, toxic] of FAULTS) {
    test(`a flush over a connection that ${name} reads back as it was`, async () => {
      const seen = new Set<string>();
      proxy.poison(({ method, path }) => {
        if (method !== 'PUT' || seen.has(path)) return undefined;
        seen.add(path);
        return toxic;
      });
      const data_key = newDataKey();
      const disk = randomBytes(200 * BLOCK_BYTES);
      const about = { disk_id: 'inst_t', epoch: 1, generation: 1, key_prefix: 'disks/inst_t' };
      const sink = new FlushSink({
        ...{ store, pool, ...about, data_key, head: undefined, size_bytes: disk.length },
        ...{ spool_bytes: 4 * 2 ** 20, upload_concurrency: 2 },
      });
      for (let at = 0; at < disk.length; at += 10 * BLOCK_BYTES)
        await sink.write(at, disk.subarray(at, at + 10 * BLOCK_BYTES));
      const { segments } = await sink.finish();
      assert(segments.length > 1);
      const restored = Buffer.alloc(disk.length);
      const target = {
        size_bytes: disk.length,
        write: async (offset: number, data: Uint8Array) => restored.set(data, offset),
        writeZeroes: async (offset: number, length: number) => void restored.fill(0, offset, offset + length),
        flush: async () => undefined,
      };
      const keys = new KeyRing([data_key]);
      const map = await loadMap({ store, layers: segments, keys });
      await restoreDisk({ store, map, target, pool, keys, concurrency: 3 });
      assert(restored.equals(disk));
    });
  }
});
