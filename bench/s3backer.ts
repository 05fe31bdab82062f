/**
 * A flush to a bucket, compared with s3backer, which mounts a bucket as a file. QEMU's backup job reads 64 MiB by the dirty
 * bitmap and writes into our sink. The baseline is the same job into s3backer's file, up to the unmount, after which everything
 * is in the bucket. Both use the same S3 server (Ceph's gateway). s3backer neither encrypts nor compresses here, and keeps no
 * generations.
 */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { once } from 'node:events';
import { access, mkdir, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { CompressPool } from '../src/disk-format/compress-pool.ts';
import { newDataKey } from '../src/disk-format/key-ring.ts';
import { FlushSink } from '../src/host/block/flush-sink.ts';
import { type S3Settings, S3Store } from '../src/object-store/s3-store.ts';
import { pause } from '../src/shared/retry.ts';
import { S3Server } from '../test/support/s3-server.ts';
import { Disk, sequential } from './backup.ts';
import { type HostBench, type HostContext, type Measured, measured, median } from './figure.ts';

const run = promisify(execFile);
const DIRTY_MIB = 64;
const DISK_GIB = 8;
const MOUNT_MS = 20_000;

/** The file of a bucket, mounted. */
class S3Backer {
  readonly file: string;
  readonly #folder: string;
  readonly #child: ChildProcess;

  private constructor(folder: string, child: ChildProcess) {
    this.#folder = folder;
    this.#child = child;
    this.file = join(folder, 'file');
  }

  static async mount(folder: string, server: S3Server, { bucket }: S3Settings): Promise<S3Backer> {
    await mkdir(folder);
    const options = [
      ...[`--accessId=${server.access_key_id}`, `--accessKey=${server.secret_access_key}`],
      // Blocks of 1 MiB suit sequential data. The default of 4 KiB would need a request each.
      ...[`--baseURL=${server.endpoint}/`, '--blockSize=1M', `--size=${DISK_GIB}G`],
      ...['--blockCacheSize=256', '--md5CacheSize=1000', '--quiet'],
    ];
    const child = spawn('s3backer', ['-f', ...options, bucket, folder], { stdio: 'ignore' });
    const mounted = new S3Backer(folder, child);
    const until_ms = performance.now() + MOUNT_MS;
    while (!(await stat(mounted.file).catch(() => null))) {
      if (child.exitCode !== null) throw new Error(`s3backer ended with ${child.exitCode}`);
      if (performance.now() > until_ms) {
        child.kill('SIGKILL');
        throw new Error('s3backer does not mount');
      }
      await pause(50);
    }
    return mounted;
  }

  /** Resolves when every write is in the bucket. */
  async unmount(): Promise<void> {
    if (this.#child.exitCode !== null) return;
    const exited = once(this.#child, 'exit');
    await run('fusermount', ['-u', this.#folder]);
    await exited;
  }
}

/** Why s3backer cannot run here; null if it can. */
async function missing(): Promise<string | null> {
  if (
    !(await access('/dev/fuse')
      .then(() => true)
      .catch(() => false))
  )
    return '/dev/fuse is not there';
  const there = await run('sh', ['-c', 'command -v s3backer && command -v fusermount']).catch(() => null);
  return there ? null : 'it is not installed (apt-get install s3backer fuse3)';
}

async function intoSegments(disk: Disk, bucket: S3Settings, pool: CompressPool): Promise<number> {
  const about = { disk_id: 'inst_bench', epoch: 1, generation: 1, key_prefix: 'disks/inst_bench' };
  const store = new S3Store(bucket);
  const size_bytes = DISK_GIB * 2 ** 30;
  const sink = new FlushSink({ store, pool, ...about, size_bytes, head: undefined, data_key: newDataKey() });
  try {
    return await disk.intoExport(sink, () => sink.finish());
  } finally {
    store.close();
  }
}

async function intoS3Backer(
  folder: string,
  disk: Disk,
  server: S3Server,
  bucket: S3Settings,
): Promise<number> {
  const mounted = await S3Backer.mount(folder, server, bucket);
  try {
    const target = { driver: 'raw', file: { driver: 'file', filename: mounted.file } };
    const job_ms = await disk.backUp(target, async () => undefined);
    // The job's target is closed; now s3backer's cache is written out.
    const began_ms = performance.now();
    await mounted.unmount();
    return job_ms + performance.now() - began_ms;
  } finally {
    await mounted.unmount().catch(() => undefined);
  }
}

async function all({ scratch_dir, runs, signal, say }: HostContext): Promise<readonly Measured[]> {
  const without = await missing();
  if (without !== null) {
    say(`not beside s3backer: ${without}`);
    return [];
  }
  await using cleanup = new AsyncDisposableStack();
  const server = await S3Server.start();
  cleanup.defer(() => server.close());
  const pool = new CompressPool();
  cleanup.defer(() => pool.close());
  const disk = await Disk.make(join(scratch_dir, 'disk'), sequential(DIRTY_MIB, DISK_GIB));
  cleanup.defer(() => disk.end());
  const [ours, theirs]: [number[], number[]] = [[], []];
  for (let round = 0; round <= runs; round++) {
    signal.throwIfAborted();
    const sink_ms = await intoSegments(disk, await server.bucket(), pool);
    const peer_ms = await intoS3Backer(
      join(scratch_dir, `mount-${round}`),
      disk,
      server,
      await server.bucket(),
    );
    const note = round === 0 ? ' (not counted)' : '';
    say(`round ${round}${note}: ours ${Math.round(sink_ms)} ms, s3backer ${Math.round(peer_ms)} ms`);
    if (round === 0) continue;
    ours.push(sink_ms);
    theirs.push(peer_ms);
  }
  const rate = (values: readonly number[]) => Math.round(DIRTY_MIB / (median(values) / 1000));
  return [
    measured({
      ...{ bench: 's3backer', figure: `flush_${DIRTY_MIB}_mib`, unit: 'ms', values: ours },
      ...{ beside: 's3backer', beside_values: theirs },
      remark: `MiB/s: ${rate(ours)}, encrypted; s3backer ${rate(theirs)}, not encrypted, blocks of 1 MiB`,
    }),
  ];
}

export const s3backerBench: HostBench = {
  alone: true,
  name: 's3backer',
  summary: `a flush of ${DIRTY_MIB} MiB to a bucket, beside the same into s3backer's file`,
  run: all,
};
