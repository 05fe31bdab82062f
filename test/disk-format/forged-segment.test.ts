/** A segment that somebody has put in the place of a true one, who can write to the object store and has no key. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { describe, test } from 'node:test';
import { compactDisk } from '../../src/control-plane/disks/compact-disk.ts';
import { dropOldGenerations } from '../../src/control-plane/disks/generation-store.ts';
import { frameCrc, hashBlock, ZERO_HASH } from '../../src/disk-format/frame-codec.ts';
import {
  BLOCK_BYTES,
  decodeTrailer,
  encodeTail,
  FRAME_KIND,
  SegmentCorruptError,
  TRAILER_BYTES,
} from '../../src/disk-format/segment-format.ts';
import type { FolderStore } from '../../src/object-store/folder-store.ts';
import { apiForFile } from '../support/api.ts';
import { ModelDisk, modelForFile } from '../support/model-disks.ts';

const api = await apiForFile();
const { db, context } = api;
const model = await modelForFile(api);
const { store } = model;
const compact = (id: ModelDisk['id']) => compactDisk({ db, store, disk_keys: context.disk_keys }, id);

function linksOf({ id }: ModelDisk) {
  const rows = db.selectFrom('generations').select(['generation', 'segments', 'map']);
  return rows.where('instance_id', '=', id).orderBy('generation').execute();
}

async function keysOf(objects: FolderStore): Promise<string[]> {
  const keys: string[] = [];
  for await (const { key } of objects.list('')) keys.push(key);
  return keys.sort();
}

/** Not encrypted, of the same name, size and blocks, but with other contents. */
async function forge(key: string, blocks: readonly number[], zeroes: readonly number[]): Promise<void> {
  const true_bytes = await store.get(key);
  const { identity } = decodeTrailer(key, true_bytes.length, true_bytes.subarray(-TRAILER_BYTES));
  const contents = blocks.map(() => randomBytes(BLOCK_BYTES));
  const entries = [
    ...contents.map((content, i) => ({
      ...{ block: blocks[i] ?? 0, kind: FRAME_KIND.raw, stored_bytes: BLOCK_BYTES },
      ...{ mark: frameCrc(content), hash: hashBlock(content) },
    })),
    ...zeroes.map((block) => ({ block, kind: FRAME_KIND.zero, stored_bytes: 0, mark: 0, hash: ZERO_HASH })),
  ];
  const forged = Buffer.concat([...contents, encodeTail({ ...identity, encryption: null }, entries, null)]);
  assert.equal(forged.length, true_bytes.length);
  await store.delete(key);
  await store.put(key, [forged]);
}

describe('compaction refuses a forged segment and leaves the disk unchanged', () => {
  for (const { what, encrypted, zeroes, problem } of [
    // The tags of five frames take as much as two entries more.
    {
      what: 'in place of one that is encrypted',
      encrypted: true,
      zeroes: [10, 11],
      problem: /not encrypted/,
    },
    { what: 'in place of a plain one', encrypted: false, zeroes: [], problem: /differs from its map/ },
  ]) {
    test(what, async () => {
      const disk = await ModelDisk.make(model, 1);
      await disk.flush([0, 1, 2, 3, 4], 'noise', encrypted);
      const [first] = await linksOf(disk);
      const key = first?.segments[0]?.key ?? assert.fail('no segment');
      assert.equal(await compact(disk.id), true, 'from now on the segment is known by a map alone');
      await disk.flush([1, 2, 3, 4], 'noise', encrypted);
      await dropOldGenerations(db);
      await forge(key, [0, 1, 2, 3, 4], zeroes);
      const [before, objects] = [await linksOf(disk), await keysOf(store)];
      await assert.rejects(
        compact(disk.id),
        (error) => error instanceof SegmentCorruptError && error.key === key && problem.test(error.problem),
      );
      assert.deepEqual(await linksOf(disk), before);
      assert.deepEqual(await keysOf(store), objects, 'nothing of the attempt is left');
    });
  }
});
