/** What a flush writes is what docs/disk-format.md says: a reader that was written from it alone finds the same bytes. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { BlockMap } from '../../src/disk-format/block-map.ts';
import { CompressPool } from '../../src/disk-format/compress-pool.ts';
import { type DataKey, KeyRing, newDataKey } from '../../src/disk-format/frame-cipher.ts';
import { diffMaps, type Layer, loadMap, wholeMap } from '../../src/disk-format/load-map.ts';
import { writeMap } from '../../src/disk-format/map-objects.ts';
import { BLOCK_BYTES } from '../../src/disk-format/segment-format.ts';
import { FlushSink } from '../../src/host/disk/flush-sink.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import { IndependentReader } from '../support/independent-reader.ts';

const BLOCKS = 50;
/** The last block is partial. */
const DISK_BYTES = BLOCKS * BLOCK_BYTES - 512 * 7;
const KEYS = [newDataKey(), newDataKey()] as const;
const keys = new KeyRing(KEYS);

const folder = await mkdtemp(join(tmpdir(), 'berth-format-'));
const store = await FolderStore.open(folder);
const pool = new CompressPool();
after(async () => {
  await pool.close();
  await rm(folder, { recursive: true, force: true });
});

const reader = (): IndependentReader => new IndependentReader((key) => readFileSync(join(folder, key)), KEYS);

/** Three generations of noise, text and zeroes: the middle one under another disk's id and key, as a fork has it. */
async function flushed(prefix: string, data_keys: readonly (DataKey | null)[]) {
  const base = randomBytes(DISK_BYTES);
  const disk = Buffer.from(base);
  const chain: Layer[][] = [];
  const contents: Buffer[] = [];
  for (const [i, data_key] of data_keys.entries()) {
    const head = await loadMap({ store, keys, layers: chain.flat() });
    const about = { disk_id: `inst_${i}`, epoch: i + 1, generation: i + 5, key_prefix: `${prefix}/${i}` };
    const options = { size_bytes: DISK_BYTES, spool_bytes: 512 * 1024, head, data_key };
    const sink = new FlushSink({ store, pool, ...about, ...options });
    for (let block = i; block < BLOCKS; block += 2 + i) {
      const content = [randomBytes(BLOCK_BYTES), Buffer.alloc(BLOCK_BYTES, `${i} ${block} `)][block % 2];
      const offset = block * BLOCK_BYTES;
      const data = (content ?? Buffer.alloc(0)).subarray(0, DISK_BYTES - offset);
      data.copy(disk, offset);
      await sink.write(offset, data);
    }
    await sink.writeZeroes(i * 10 * BLOCK_BYTES, 3 * BLOCK_BYTES);
    disk.fill(0, i * 10 * BLOCK_BYTES, (i * 10 + 3) * BLOCK_BYTES);
    const { segments } = await sink.finish();
    assert(segments.length > 1, 'several parts');
    chain.push([...segments]);
    contents.push(Buffer.from(disk));
  }
  return { base, chain, contents };
}

for (const [name, data_keys] of Object.entries({
  encrypted: [KEYS[0], KEYS[1], KEYS[0]],
  plain: [null, null, null],
  'of both kinds': [KEYS[0], null, KEYS[1]],
})) {
  test(`an independent reader of the documented format reads a disk that is ${name} alike, from segments and from maps`, async () => {
    const prefix = name.replaceAll(' ', '-');
    const { base, chain, contents } = await flushed(prefix, data_keys);
    const by_segments = reader();
    for (const [i, layers] of chain.entries()) {
      for (const { key } of layers) by_segments.apply(key);
      assert(by_segments.content(base).equals(contents[i] ?? assert.fail()), `generation ${i}`);
    }
    const maps: BlockMap[] = [];
    const by_maps = reader();
    for (const [i] of chain.entries()) {
      const map = await loadMap({ store, keys, layers: chain.slice(0, i + 1).flat() });
      const about = { key_prefix: prefix, disk_id: 'inst_0', disk_bytes: DISK_BYTES, generation: i };
      const changes = i === 0 ? wholeMap(map) : diffMaps(maps.at(-1) ?? new BlockMap(), map);
      const written = await writeMap({
        store,
        ...about,
        full: i === 0,
        changes,
        data_key: data_keys[i] ?? null,
      });
      maps.push(map);
      by_maps.apply(written.key);
      assert(by_maps.content(base).equals(contents[i] ?? assert.fail()), `generation ${i} by maps`);
    }
    // Back to the first: what a delta takes out is as in the base image again.
    const [first, last] = [maps[0] ?? assert.fail(), maps[2] ?? assert.fail()];
    const about = { key_prefix: prefix, disk_id: 'inst_0', disk_bytes: DISK_BYTES, generation: 9 };
    const back = await writeMap({
      store,
      ...about,
      full: false,
      changes: diffMaps(last, first),
      data_key: KEYS[0],
    });
    by_maps.apply(back.key);
    assert(by_maps.content(base).equals(contents[0] ?? assert.fail()), 'back to the first generation');
  });
}
