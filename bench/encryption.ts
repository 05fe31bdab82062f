/**
 * The cost of encryption: a flush of 256 MiB of log-like lines, encrypted and not encrypted, from the writes of QEMU's backup
 * job to durable segments, without a guest. Also the packing alone on one core: hash, compress and encrypt, compared with hash
 * and compress.
 */
import { rm } from 'node:fs/promises';
import { join } from 'node:path';
import { BlockBuffers } from '../src/disk-format/block-buffers.ts';
import { packBatch } from '../src/disk-format/compress-batch.ts';
import { CompressPool } from '../src/disk-format/compress-pool.ts';
import { type DataKey, newAttemptKey, newDataKey, PURPOSE } from '../src/disk-format/key-ring.ts';
import { BLOCK_BYTES } from '../src/disk-format/segment-format.ts';
import { FlushSink } from '../src/host/block/flush-sink.ts';
import { FolderStore } from '../src/object-store/folder-store.ts';

import { type HostBench, type HostContext, type Measured, measured, median } from './figure.ts';

const MIB = 1024 * 1024;
const FLUSH_BYTES = 256 * MIB;
const PACK_BYTES = 64 * MIB;

/** Lines of varying numbers, which zstd compresses to about a third. */
function text(bytes: number): Buffer {
  const out = Buffer.alloc(bytes);
  let state = 1;
  for (let at = 0; at < bytes; ) {
    state = (Math.imul(state, 1_664_525) + 1_013_904_223) >>> 0;
    at += out.write(
      `12:00:${state % 60} request ${state} served in ${state % 997} ms by worker ${state % 16}\n`,
      at,
    );
  }
  return out;
}

async function flush(
  folder: string,
  pool: CompressPool,
  data: Buffer,
  data_key: DataKey | null,
): Promise<number> {
  const store = await FolderStore.open(folder);
  const about = { disk_id: 'inst_bench', epoch: 1, generation: 1, key_prefix: 'disks/inst_bench' };
  const started_ms = performance.now();
  const sink = new FlushSink({ store, pool, ...about, size_bytes: data.length, head: undefined, data_key });
  for (let at = 0; at < data.length; at += MIB) await sink.write(at, data.subarray(at, at + MIB));
  await sink.finish();
  const took_ms = performance.now() - started_ms;
  await rm(folder, { recursive: true });
  return took_ms;
}

/** Packs on this thread, in batches like those of the workers. Returns the CPU time in milliseconds. */
function pack(data: Buffer, data_key: DataKey | null): number {
  const key = data_key && newAttemptKey(data_key, PURPOSE.segment);
  const home = { disk_id: 'inst_bench', epoch: 1, generation: 1 };
  const count = MIB / BLOCK_BYTES;
  const buffers = new BlockBuffers(count);
  const [known, known_present] = [new Uint8Array(count * 16), new Uint8Array(count)];
  const started = process.cpuUsage();
  for (let at = 0; at < data.length; at += MIB) {
    const numbers = Uint32Array.from({ length: count }, (_, i) => at / BLOCK_BYTES + i);
    const sealing = key ? { key: key.key, home, numbers, first_counter: at / BLOCK_BYTES } : undefined;
    const blocks = buffers.take();
    blocks.set(data.subarray(at, at + MIB));
    const { frames, spare } = packBatch({ blocks, known, known_present, sealing });
    buffers.give(frames);
    if (spare) buffers.give(spare);
  }
  const { user, system } = process.cpuUsage(started);
  return (user + system) / 1_000;
}

interface Sides {
  readonly encrypted: number[];
  readonly plain: number[];
}

async function all({ scratch_dir, runs, signal, say }: HostContext): Promise<readonly Measured[]> {
  const pool = new CompressPool();
  const key = newDataKey();
  const data = text(FLUSH_BYTES);
  const [flushes, packs]: [Sides, Sides] = [
    { encrypted: [], plain: [] },
    { encrypted: [], plain: [] },
  ];
  try {
    for (let number = 0; number <= runs; number++) {
      signal.throwIfAborted();
      for (const [side, data_key] of [['encrypted', key] as const, ['plain', null] as const]) {
        const flush_ms = await flush(join(scratch_dir, 'objects'), pool, data, data_key);
        const pack_ms = pack(data.subarray(0, PACK_BYTES), data_key);
        say(`round ${number}, ${side}: flush ${Math.round(flush_ms)} ms, pack ${Math.round(pack_ms)} ms`);
        if (number === 0) continue;
        flushes[side].push(flush_ms);
        packs[side].push(pack_ms);
      }
    }
  } finally {
    await pool.close();
  }
  return [figure('flush_256_mib', FLUSH_BYTES, flushes), figure('pack_64_mib_one_core', PACK_BYTES, packs)];
}

function figure(name: string, bytes: number, { encrypted, plain }: Sides): Measured {
  const [with_it, without] = [encrypted, plain].map((values) =>
    Math.round(bytes / MIB / (median(values) / 1000)),
  );
  return measured({
    bench: 'encryption',
    figure: name,
    unit: 'ms',
    values: encrypted,
    beside: 'the same, not encrypted',
    beside_values: plain,
    remark: `${with_it} MiB/s beside ${without} MiB/s`,
  });
}

export const encryptionBench: HostBench = {
  alone: true,
  name: 'encryption',
  summary: 'a flush of 256 MiB, and the packing of 64 MiB on one core, encrypted beside not encrypted',
  run: all,
};
