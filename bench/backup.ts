/**
 * Measures a flush on the host, without a guest: QEMU's backup job reads the dirty bitmap and writes into our sink,
 * which stores durable segments in a folder. Compared with the same job into a qcow2 file, and with `qemu-img convert
 * -c` of the same data. Also measured: the CPU time of our process, and a flush of 16 MiB on disks of 1, 16 and 256
 * GiB, which must take the same time.
 *
 * No job changes the bitmap (`bitmap-mode: never`), so every side copies the same blocks.
 */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { cp, mkdir, open, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { CompressPool } from '../src/disk-format/compress-pool.ts';
import { newDataKey } from '../src/disk-format/frame-cipher.ts';
import { isZeroBlock } from '../src/disk-format/frame-codec.ts';
import { BLOCK_BYTES } from '../src/disk-format/segment-format.ts';
import { FlushSink } from '../src/host/disk/flush-sink.ts';
import { NbdClient } from '../src/host/disk/nbd-client.ts';
import type { NbdExport } from '../src/host/disk/nbd-protocol.ts';
import { NbdServer } from '../src/host/disk/nbd-server.ts';
import { QmpClient, waitForJob } from '../src/host/qemu/qmp-client.ts';
import { FolderStore } from '../src/object-store/folder-store.ts';
import { backoffMs, pause } from '../src/shared/retry.ts';
import { type HostBench, type HostContext, type Measured, measured, median } from './figure.ts';

const run = promisify(execFile);
const MIB = 2 ** 20;
const GIB = 2 ** 30;
const JOB = 'bench';
const TARGET = 'target';
const SIDES = ['sink', 'qcow2', 'convert'] as const;
/** CPU seconds of our process for 512 MiB of ordinary data. */
const AIM_CORE_SECONDS = 1.5;
type Side = (typeof SIDES)[number];
/** Milliseconds of each side, and the CPU time of our process. */
type Times = Record<Side | 'processor', number[]>;

export interface Case {
  readonly figure: string;
  readonly disk_gib: number;
  readonly write: (disk: NbdClient) => Promise<void>;
  readonly dirty_bytes: number;
}

export function sequential(mib: number, disk_gib = 8): Case {
  const figure = disk_gib === 8 ? `flush_${mib}_mib` : `flush_${mib}_mib_of_${disk_gib}_gib`;
  const write = async (disk: NbdClient) => {
    // From the middle, so that a large disk has a large table.
    const start = Math.floor((disk_gib * GIB) / 2 / MIB) * MIB;
    for (let i = 0; i < mib; i++) await disk.write(start + i * MIB, randomBytes(MIB));
  };
  return { figure, disk_gib, write, dirty_bytes: mib * MIB };
}

/** Ordinary data: the blocks of a guest image that are not zero, in order, repeated. */
export function ordinary(mib: number, image_dir: string): Case {
  const write = async (disk: NbdClient) => {
    await using image = await open(join(image_dir, 'rootfs.img'), 'r');
    const blocks_wanted = (mib * MIB) / BLOCK_BYTES;
    const block = Buffer.alloc(BLOCK_BYTES);
    for (let written = 0, at = 0; written < blocks_wanted; at += BLOCK_BYTES) {
      const { bytesRead } = await image.read(block, 0, BLOCK_BYTES, at);
      if (bytesRead < BLOCK_BYTES) at = -BLOCK_BYTES;
      else if (!isZeroBlock(block)) await disk.write(4 * GIB + written++ * BLOCK_BYTES, block);
    }
  };
  return { figure: `flush_${mib}_mib_ordinary`, disk_gib: 8, write, dirty_bytes: mib * MIB };
}

/** Like a database: 4 KiB in each of many blocks. Each block is dirty as a whole. */
function scattered(blocks: number): Case {
  const write = async (disk: NbdClient) => {
    for (let i = 0; i < blocks; i++) await disk.write(i * 8 * BLOCK_BYTES + 4_096, randomBytes(4_096));
  };
  const dirty_bytes = blocks * BLOCK_BYTES;
  return { figure: `flush_${dirty_bytes / MIB}_mib_scattered_4_kib`, disk_gib: 8, write, dirty_bytes };
}

function cases(image_dir: string): readonly Case[] {
  return [
    ...[sequential(1), sequential(64), sequential(512), ordinary(512, image_dir), scattered(4_096)],
    ...[sequential(16, 1), sequential(16, 16), sequential(16, 256)],
  ];
}

/** A QEMU without a machine. It has the disk open, with its dirty blocks marked. */
export class Disk {
  readonly #folder: string;
  readonly #child: ChildProcess;
  readonly #qmp: QmpClient;
  readonly #size_bytes: number;

  private constructor(folder: string, child: ChildProcess, qmp: QmpClient, size_bytes: number) {
    this.#folder = folder;
    this.#child = child;
    this.#qmp = qmp;
    this.#size_bytes = size_bytes;
  }

  static async make(folder: string, { disk_gib, write }: Case): Promise<Disk> {
    await mkdir(folder);
    const image = join(folder, 'disk.qcow2');
    await run('qemu-img', [
      ...['create', '-q', '-f', 'qcow2', '-o', 'extended_l2=on,cluster_size=128k'],
      image,
      `${disk_gib}G`,
    ]);
    const socket = join(folder, 'qmp.sock');
    const node = { driver: 'qcow2', 'node-name': 'disk', file: { driver: 'file', filename: image } };
    const child = spawn(
      'qemu-system-x86_64',
      [
        ...['-S', '-M', 'none', '-nodefaults', '-display', 'none', '-blockdev', JSON.stringify(node)],
        ...[
          '-chardev',
          `socket,id=qmp,path=${socket},server=on,wait=off`,
          '-mon',
          'chardev=qmp,mode=control',
        ],
      ],
      { stdio: ['ignore', 'ignore', 'inherit'] },
    );
    try {
      const disk = new Disk(folder, child, await connected(socket, child), disk_gib * GIB);
      await disk.#fill(write);
      // A copy for `qemu-img convert`, which must not read a file that QEMU has open for writing.
      await cp(image, join(folder, 'copy.qcow2'));
      return disk;
    } catch (error) {
      child.kill('SIGKILL');
      throw error;
    }
  }

  async #fill(write: Case['write']): Promise<void> {
    await this.#qmp.execute('block-dirty-bitmap-add', {
      node: 'disk',
      name: 'dirty',
      granularity: BLOCK_BYTES,
    });
    const path = join(this.#folder, 'fill.sock');
    await this.#qmp.execute('nbd-server-start', { addr: { type: 'unix', data: { path } } });
    await this.#qmp.execute('block-export-add', {
      type: 'nbd',
      id: 'fill',
      'node-name': 'disk',
      name: 'fill',
      writable: true,
    });
    const client = await NbdClient.connect({ path, export_name: 'fill' });
    await write(client);
    await client.flush();
    await client.disconnect();
    await this.#qmp.execute('nbd-server-stop', undefined);
  }

  /** Milliseconds from the job's beginning to `finish`. */
  async backUp(
    target: { readonly driver: string; readonly [option: string]: unknown },
    finish: () => Promise<unknown>,
  ): Promise<number> {
    await this.#qmp.execute('blockdev-add', { ...target, 'node-name': TARGET });
    const began_ms = performance.now();
    const data = {
      'job-id': JOB,
      device: 'disk',
      target: TARGET,
      sync: 'bitmap',
      bitmap: 'dirty',
      'bitmap-mode': 'never',
    } as const;
    const job = { ...data, 'auto-finalize': true, 'auto-dismiss': false };
    await this.#qmp.execute('transaction', { actions: [{ type: 'blockdev-backup', data: job }] });
    const { error } = await waitForJob(this.#qmp, JOB, ['concluded'], { timeout_ms: 600_000 });
    if (error) throw new Error(`the backup job failed: ${error}`);
    await finish();
    const took_ms = performance.now() - began_ms;
    await this.#qmp.execute('job-dismiss', { id: JOB });
    await this.#qmp.execute('blockdev-del', { 'node-name': TARGET });
    return took_ms;
  }

  async intoExport(disk: NbdExport, finish: () => Promise<unknown>): Promise<number> {
    const path = join(this.#folder, 'target.sock');
    const server = await NbdServer.listen({ path });
    server.addExport('target', disk);
    try {
      return await this.backUp({ driver: 'nbd', server: { type: 'unix', path }, export: 'target' }, finish);
    } finally {
      await server.close();
    }
  }

  async measure(side: Side, pool: CompressPool): Promise<number> {
    const size_bytes = this.#size_bytes;
    const folder = join(this.#folder, side);
    await mkdir(folder);
    try {
      if (side === 'sink') {
        const about = { disk_id: 'inst_bench', epoch: 1, generation: 1, key_prefix: 'disks/inst_bench' };
        const store = await FolderStore.open(folder);
        const sink = new FlushSink({
          store,
          pool,
          ...about,
          size_bytes,
          head: undefined,
          data_key: newDataKey(),
        });
        return await this.intoExport(sink, () => sink.finish());
      }
      const image = join(folder, 'image.qcow2');
      if (side === 'qcow2') {
        await run('qemu-img', ['create', '-q', '-f', 'qcow2', image, String(size_bytes)]);
        return await this.backUp({ driver: 'qcow2', file: { driver: 'file', filename: image } }, () =>
          run('sync', [image]),
        );
      }
      const began_ms = performance.now();
      await run('qemu-img', ['convert', '-c', '-O', 'qcow2', join(this.#folder, 'copy.qcow2'), image]);
      await run('sync', [image]);
      return performance.now() - began_ms;
    } finally {
      await rm(folder, { recursive: true });
    }
  }

  async end(): Promise<void> {
    this.#qmp.close();
    if (this.#child.exitCode === null && this.#child.signalCode === null) {
      const exited = once(this.#child, 'exit');
      this.#child.kill('SIGKILL');
      await exited;
    }
    await rm(this.#folder, { recursive: true, force: true });
  }
}

async function connected(socket: string, child: ChildProcess): Promise<QmpClient> {
  for (let attempt = 0; ; attempt++) {
    try {
      return await QmpClient.connect(socket);
    } catch (error) {
      if (attempt === 50 || child.exitCode !== null) throw error;
      await pause(backoffMs(attempt, 50, 200));
    }
  }
}

async function measureCase(context: HostContext, about: Case, pool: CompressPool): Promise<Times> {
  const { scratch_dir, runs, signal, say } = context;
  const times: Times = { sink: [], qcow2: [], convert: [], processor: [] };
  const disk = await Disk.make(join(scratch_dir, about.figure), about);
  try {
    for (let round = 0; round <= runs; round++) {
      const told: string[] = [];
      for (const side of SIDES) {
        signal.throwIfAborted();
        const before = process.cpuUsage();
        const took_ms = await disk.measure(side, pool);
        const { user, system } = process.cpuUsage(before);
        const processor_ms = (user + system) / 1000;
        told.push(`${side} ${Math.round(took_ms)} ms`);
        if (side === 'sink') told.push(`${Math.round(processor_ms)} ms of processors`);
        if (round === 0) continue;
        times[side].push(took_ms);
        if (side === 'sink') times.processor.push(processor_ms);
      }
      say(`${about.figure}, round ${round}${round === 0 ? ' (not counted)' : ''}: ${told.join(', ')}`);
    }
    return times;
  } finally {
    await disk.end();
  }
}

function figures(times: ReadonlyMap<Case, Times>): Measured[] {
  const all = [...times].map(([{ figure, dirty_bytes }, { sink, qcow2, convert, processor }]) => {
    const rate = (values: number[]) => Math.round(dirty_bytes / MIB / (median(values) / 1000));
    const seconds = (median(processor) / 1000).toFixed(2);
    const remark = `MiB/s: ${rate(sink)}, into a qcow2 ${rate(qcow2)}, qemu-img convert -c ${rate(convert)}; ${seconds} core-seconds`;
    const beside = 'the same job into a qcow2 here';
    return measured({
      bench: 'backup',
      figure,
      unit: 'ms',
      values: sink,
      beside,
      beside_values: qcow2,
      remark,
    });
  });
  const [small, large] = [1, 256].map(
    (gib) => [...times].find(([{ disk_gib }]) => disk_gib === gib)?.[1].sink ?? [],
  );
  const ordinary_ms =
    [...times].find(([{ figure }]) => figure.endsWith('512_mib_ordinary'))?.[1].processor ?? [];
  return [
    ...all,
    measured({
      ...{ bench: 'backup', figure: 'core_seconds_512_mib_ordinary', unit: 's' },
      values: ordinary_ms.map((ms) => ms / 1000),
      ...{ beside: 'the aim', beside_values: ordinary_ms.map(() => AIM_CORE_SECONDS) },
      remark: 'hash, zstd, AES-GCM, receiving and writing',
    }),
    measured({
      ...{ bench: 'backup', figure: 'flat_256_gib', unit: 'ms', values: large ?? [] },
      ...{
        beside: 'the same 16 MiB of 1 GiB',
        beside_values: small ?? [],
        remark: 'aim: at most 1.3',
      },
    }),
  ];
}

async function all(context: HostContext): Promise<readonly Measured[]> {
  const pool = new CompressPool();
  const times = new Map<Case, Times>();
  try {
    for (const each of cases(context.image_dir)) times.set(each, await measureCase(context, each, pool));
  } finally {
    await pool.close();
  }
  return figures(times);
}

export const backupBench: HostBench = {
  alone: true,
  name: 'backup',
  summary:
    'a flush on the host, of 1 to 512 MiB and on disks of 1 to 256 GiB, beside the same job into a qcow2',
  run: all,
};
