import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { test } from 'node:test';
import { newBlocks } from './block-buffers.ts';
import { packBatch, unpackBatch } from './compress-batch.ts';
import { CompressPool, CompressWorkerError, type PackTask, UNCHANGED } from './compress-pool.ts';
import { hashBlock, ZERO_HASH } from './frame-codec.ts';
import { BLOCK_BYTES, FRAME_KIND, type FrameKind } from './segment-format.ts';

const NOISE = randomBytes(BLOCK_BYTES);
const TEXT = Buffer.alloc(BLOCK_BYTES, 'some text ');
const KNOWN = randomBytes(BLOCK_BYTES);

function task(): PackTask {
  const blocks = newBlocks(4);
  blocks.set(NOISE, 0);
  blocks.set(TEXT, BLOCK_BYTES);
  blocks.set(KNOWN, 3 * BLOCK_BYTES);
  const known = new Uint8Array(4 * 16);
  known.set(hashBlock(KNOWN), 3 * 16);
  return { blocks, known, known_present: new Uint8Array([0, 1, 0, 1]) };
}

test('noise stays raw, text shrinks, zeroes vanish, known blocks are left out', async () => {
  const pool = new CompressPool({ workers: 1 });
  const packed = await pool.pack(task());
  assert.deepEqual([...packed.kinds], [FRAME_KIND.raw, FRAME_KIND.zstd, FRAME_KIND.zero, UNCHANGED]);
  assert.deepEqual(packed, packBatch(task()));
  assert.deepEqual([...packed.hashes.subarray(32, 48)], [...ZERO_HASH]);
  const frames = {
    frames: packed.frames,
    kinds: [...packed.kinds.subarray(0, 3)] as FrameKind[],
    stored_bytes: [...packed.stored_bytes],
    hashes: packed.hashes,
  };
  const here = unpackBatch(frames);
  const there = await pool.unpack(frames);
  assert.deepEqual(here, there);
  assert(
    there.ok && Buffer.from(there.blocks).equals(Buffer.concat([NOISE, TEXT, Buffer.alloc(BLOCK_BYTES)])),
  );
  await pool.close();
});

test('a frame with a wrong hash is not returned', () => {
  const { frames, kinds, stored_bytes, hashes } = packBatch(task());
  hashes[16] = (hashes[16] ?? 0) ^ 1;
  const unpacked = unpackBatch({
    frames,
    kinds: [...kinds.subarray(0, 3)] as FrameKind[],
    stored_bytes: [...stored_bytes],
    hashes,
  });
  assert(!unpacked.ok && unpacked.index === 1 && /hash/.test(unpacked.problem));
});

test('a worker that dies rejects its batches and is replaced', async () => {
  const program = `
    const { parentPort } = require('node:worker_threads');
    parentPort.on('message', ({ id, task }) => {
      if (task.blocks[0] === 1) process.exit(3);
      parentPort.postMessage({ id, result: { kinds: task.known_present } });
    });`;
  const worker_url = new URL(
    `data:text/javascript,${encodeURIComponent(`import { createRequire } from 'node:module'; const require = createRequire('file:///');${program}`)}`,
  );
  const pool = new CompressPool({ workers: 1, worker_url });
  const fatal = task();
  fatal.blocks[0] = 1;
  const harmless = task();
  harmless.blocks[0] = 0;
  await assert.rejects(pool.pack(fatal), CompressWorkerError);
  assert.deepEqual([...(await pool.pack(harmless)).kinds], [0, 1, 0, 1]);
  await pool.close();
});

test('a closed pool refuses batches and rejects those in progress', async () => {
  const pool = new CompressPool();
  const under_way = Array.from({ length: 10 }, () => pool.pack(task()));
  const settled = Promise.allSettled(under_way);
  await pool.close();
  for (const outcome of await settled) {
    assert(outcome.status === 'fulfilled' || outcome.reason instanceof CompressWorkerError);
  }
  await assert.rejects(pool.pack(task()), CompressWorkerError);
});
