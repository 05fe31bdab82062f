/**
 * Runs the agent's block devices in a separate process, so that a test can measure its memory: the sink of a flush, or
 * a lazy disk, behind an NBD server, over a folder or a bucket. `test/host/block-memory.test.ts` controls it over IPC.
 */
import { open, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { CompressPool } from '../../src/disk-format/compress-pool.ts';
import { KeyRing, newDataKey } from '../../src/disk-format/frame-cipher.ts';
import { loadMap, type SegmentRef } from '../../src/disk-format/load-map.ts';
import { FlushSink } from '../../src/host/disk/flush-sink.ts';
import { LazyDisk } from '../../src/host/disk/lazy-disk.ts';
import { NbdServer } from '../../src/host/disk/nbd-server.ts';
import { RunCache } from '../../src/host/disk/run-cache.ts';
import { openStore } from '../../src/object-store/open-store.ts';
import type { S3Settings } from '../../src/object-store/s3-store.ts';
// Loads all modules of the agent, because they count too.
import '../../src/launcher/roles/agent.ts';

export interface SubjectTask {
  readonly size_bytes: number;
  readonly s3: S3Settings | null;
  /** The parent removes it, because this process is killed. */
  readonly folder: string;
}

const task = JSON.parse(process.argv[2] ?? '') as SubjectTask;
const { createLog } = await import('../../src/shared/log.ts');
const { folder } = task;
const store = await openStore({
  s3: task.s3,
  folder: join(folder, 'objects'),
  log: createLog('memory', 'error'),
});
const pool = new CompressPool();
const key = newDataKey();
const keys = new KeyRing([key]);
const path = join(folder, 'nbd.sock');
const about = { disk_id: 'inst_memory', epoch: 1, key_prefix: 'disks/inst_memory' };
let segments: readonly SegmentRef[] = [];

async function told(): Promise<void> {
  await new Promise((resolve) => process.once('message', resolve));
}

async function flush(): Promise<void> {
  const sink = new FlushSink({
    ...{ store, pool, ...about, generation: 1, size_bytes: task.size_bytes, head: undefined, data_key: key },
  });
  const server = await NbdServer.listen({ path });
  server.addExport('disk', sink);
  process.send?.({ listening: path });
  await told();
  ({ segments } = await sink.finish());
  await server.close();
  process.send?.({ flushed: segments.length });
}

async function serve(): Promise<void> {
  const map = await loadMap({ store, layers: segments, keys });
  await writeFile(join(folder, 'base'), '');
  await using base = await open(join(folder, 'base'), 'r');
  const runs = new RunCache({ store, pool });
  const disk = new LazyDisk({
    size_bytes: task.size_bytes,
    base,
    runs,
    map: async () => map,
    keys: () => keys,
  });
  const server = await NbdServer.listen({ path });
  server.addExport('disk', disk);
  process.send?.({ listening: path });
  await told();
  await server.close();
}

try {
  await flush();
  await told();
  await serve();
} finally {
  await pool.close();
  process.disconnect?.();
}
