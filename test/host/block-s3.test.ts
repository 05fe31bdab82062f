/** Flush and restore of a disk over a real S3 server and a poisoned way to it: what comes back is right, or is refused. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, afterEach, before, beforeEach, describe, test } from 'node:test';
import { CompressPool } from '../../src/disk-format/compress-pool.ts';
import { KeyRing, newDataKey } from '../../src/disk-format/frame-cipher.ts';
import { loadMap, type SegmentRef } from '../../src/disk-format/load-map.ts';
import { BLOCK_BYTES, SegmentCorruptError } from '../../src/disk-format/segment-format.ts';
import { FlushSink } from '../../src/host/disk/flush-sink.ts';
import { ObjectStoreUnavailableError } from '../../src/object-store/object-store.ts';
import { S3Store } from '../../src/object-store/s3-store.ts';
import { restoreDisk } from '../support/restore-disk.ts';
import { S3Server } from '../support/s3-server.ts';
import { thorough } from '../support/thorough.ts';
import { type SeenRequest, type Toxic, ToxicProxy } from '../support/toxic-proxy.ts';

const THOROUGH = thorough(import.meta.filename);

const BLOCKS = 200;
const DISK_BYTES = BLOCKS * BLOCK_BYTES;
const DATA_KEY = newDataKey();
const keys = new KeyRing([DATA_KEY]);
const PATIENCE = { backoff_base_ms: 5, backoff_max_ms: 20, stall_timeout_ms: 1_500 };

describe('a disk in S3', { timeout: 300_000 }, () => {
  const pool = new CompressPool();
  let server: S3Server;
  let proxy: ToxicProxy;
  let store: S3Store;
  let disk: Buffer;
  let generation = 0;

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
    store = new S3Store(await server.bucket(proxy.endpoint), { patience: PATIENCE });
    disk = randomBytes(DISK_BYTES);
  });
  afterEach(() => {
    proxy.heal();
    store.close();
  });

  function sink(): FlushSink {
    return new FlushSink({
      ...{ store, pool, disk_id: 'inst_t', epoch: 1, generation: ++generation, key_prefix: 'disks/inst_t' },
      ...{
        data_key: DATA_KEY,
        head: undefined,
        size_bytes: DISK_BYTES,
        spool_bytes: 4 * 2 ** 20,
        upload_concurrency: 2,
      },
    });
  }

  async function flushed(into = sink()): Promise<readonly SegmentRef[]> {
    for (let at = 0; at < DISK_BYTES; at += 10 * BLOCK_BYTES) {
      await into.write(at, disk.subarray(at, at + 10 * BLOCK_BYTES));
    }
    return (await into.finish()).segments;
  }

  /** What a restore has written, whether or not it came to its end. */
  const restored = Buffer.alloc(DISK_BYTES);
  async function restore(segments: readonly SegmentRef[]): Promise<void> {
    restored.fill(0);
    const target = {
      size_bytes: DISK_BYTES,
      write: async (offset: number, data: Uint8Array) => restored.set(data, offset),
      writeZeroes: async (offset: number, length: number) => void restored.fill(0, offset, offset + length),
      flush: async () => undefined,
    };
    await restoreDisk({
      store,
      map: await loadMap({ store, layers: segments, keys }),
      target,
      pool,
      keys,
      concurrency: 3,
    });
  }

  /** Each object's bytes that are asked for the first time. */
  function onFirstAsking(toxic: Toxic): (request: SeenRequest) => Toxic | undefined {
    const asked = new Set<string>();
    return ({ method, path, headers }) => {
      const what = `${method} ${path} ${headers.range}`;
      if (asked.has(what)) return undefined;
      asked.add(what);
      return toxic;
    };
  }

  const UPLOADS: readonly (readonly [string, Toxic, object?])[] = [
    ['answers 503', { answer: { status: 503, code: 'SlowDown' } }, THOROUGH],
    ['breaks the connection', { cut_request_at: 200_000 }],
    ['changes a bit', { flip_request_at: 200_000 }],
    ['loses the answer', { lose_answer: true }],
    ['says nothing', { hang: true }],
    ['is slow', { delay_ms: 100 }, THOROUGH],
  ];
  for (const [name, toxic, extent = {}] of UPLOADS) {
    test(`is flushed completely over a connection that ${name}`, extent, async () => {
      proxy.poison(onFirstAsking(toxic));
      const segments = await flushed();
      assert(segments.length > 1);
      proxy.heal();
      await restore(segments);
      assert(restored.equals(disk));
    });
  }

  const DOWNLOADS: readonly (readonly [string, Toxic])[] = [
    ['answers 500', { answer: { status: 500, code: 'InternalError' } }],
    ['breaks in the middle', { cut_answer_at: 1_000 }],
    ['stops in the middle', { stall_answer_at: 1_000 }],
    ['changes a bit of each answer', { flip_answer_at: 1_000 }],
  ];
  for (const [name, toxic] of DOWNLOADS) {
    test(`is restored completely over a connection that ${name} at the first attempt`, async () => {
      const segments = await flushed();
      proxy.poison(onFirstAsking(toxic));
      await restore(segments);
      assert(proxy.seen.length > 2 * segments.length);
      assert(restored.equals(disk));
    });
  }

  test('is refused, and no wrong byte is written, when bits are flipped repeatedly', async () => {
    const segments = await flushed();
    const [one] = segments;
    assert(one);
    // The directory is read well; frames are not.
    const is_frame = ({ headers }: SeenRequest) => /^bytes=0-/.test(headers.range ?? '');
    proxy.poison((request) => (is_frame(request) ? { flip_answer_at: 100_000 } : undefined));
    const named = (error: unknown) =>
      error instanceof SegmentCorruptError && segments.some(({ key }) => key === error.key);
    await assert.rejects(restore(segments), named);
    for (let at = 0; at < DISK_BYTES; at += BLOCK_BYTES) {
      const block = restored.subarray(at, at + BLOCK_BYTES);
      assert(block.equals(disk.subarray(at, at + BLOCK_BYTES)) || block.every((byte) => byte === 0));
    }
    proxy.poison(() => ({ flip_answer_at: 0 }));
    await assert.rejects(loadMap({ store, layers: segments, keys }), named);
  });

  test('fails a flush when the store disappears, leaves at most the objects in flight, and is complete after the next flush', async () => {
    const first = sink();
    proxy.poison(({ number }) => (number > 1 ? { answer: { status: 503, code: 'SlowDown' } } : undefined));
    await assert.rejects(flushed(first), ObjectStoreUnavailableError);
    proxy.heal();
    await first.abort();
    // A PUT that was given up may still arrive, also after its object was deleted: what the sweep of orphans is for.
    let left = 0;
    for await (const _object of store.list('')) left += 1;
    assert.ok(left <= 1, `${left} objects are left`);
    await restore(await flushed());
    assert(restored.equals(disk));
  });
});
