/**
 * QEMU's own backup job into our NBD server, and our restore into QEMU's own NBD export: what the flush stands on.
 * No guest: QEMU is paused, its block layer is written to by the monitor's qemu-io.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { after, before, describe, test } from 'node:test';
import type { BlockMap } from '../../src/disk-format/block-map.ts';
import { CompressPool } from '../../src/disk-format/compress-pool.ts';
import { KeyRing, newDataKey } from '../../src/disk-format/frame-cipher.ts';
import { loadMap, type SegmentRef } from '../../src/disk-format/load-map.ts';
import { BLOCK_BYTES } from '../../src/disk-format/segment-format.ts';
import { FlushSink } from '../../src/host/disk/flush-sink.ts';
import { NbdClient } from '../../src/host/disk/nbd-client.ts';
import type { NbdExport } from '../../src/host/disk/nbd-protocol.ts';
import { NbdServer } from '../../src/host/disk/nbd-server.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import { type ObjectStore, ObjectStoreUnavailableError } from '../../src/object-store/object-store.ts';
import { restoreDisk } from '../support/restore-disk.ts';

const MIB = 1024 * 1024;
const DISK_BYTES = 64 * MIB;
const DATA_KEY = newDataKey();
const keys = new KeyRing([DATA_KEY]);

interface JobEvent {
  readonly event?: string;
  readonly data?: { readonly id?: string; readonly status?: string };
}

/** QMP by hand over a socket pair (stdout is qemu-io's): one command at a time, events kept for whoever waits. */
class Qemu {
  readonly #child: ChildProcess;
  readonly #socket: Socket;
  readonly #events: JobEvent[] = [];
  readonly #waiting = new Set<() => void>();
  #answer: ((reply: { return?: unknown; error?: { desc: string } }) => void) | undefined;

  constructor(args: readonly string[]) {
    const fixed = ['-S', '-M', 'none', '-nodefaults', '-display', 'none'];
    const monitor = ['-chardev', 'socket,id=qmp,fd=3', '-mon', 'chardev=qmp,mode=control'];
    this.#child = spawn('qemu-system-x86_64', [...fixed, ...monitor, ...args], {
      stdio: ['ignore', 'ignore', 'inherit', 'pipe'],
    });
    const socket = this.#child.stdio[3];
    assert(socket instanceof Socket);
    this.#socket = socket;
    const lines = createInterface({ input: socket });
    lines.on('error', () => {}); // the socket breaks when QEMU is killed at the end
    lines.on('line', (line) => {
      const message = JSON.parse(line);
      if ('return' in message || 'error' in message) this.#answer?.(message);
      else this.#events.push(message);
      for (const look of this.#waiting) look();
    });
  }

  async command(execute: string, args: object = {}): Promise<unknown> {
    const answered = new Promise<{ return?: unknown; error?: { desc: string } }>((resolve) => {
      this.#answer = resolve;
    });
    this.#socket.write(`${JSON.stringify({ execute, arguments: args })}\n`);
    const reply = await answered;
    if (reply.error) throw new Error(`${execute}: ${reply.error.desc}`);
    return reply.return;
  }

  /** Runs a qemu-io command on a node; what it prints is lost, so look at what it did. */
  async io(command: string, node = 'overlay'): Promise<void> {
    await this.command('human-monitor-command', { 'command-line': `qemu-io ${node} "${command}"` });
  }

  /** Waits for a job to reach one of `statuses` and answers which; takes the events up to there. */
  async job(id: string, statuses: readonly string[]): Promise<string> {
    for (;;) {
      while (this.#events.length > 0) {
        const event = this.#events.shift();
        const status = event?.event === 'JOB_STATUS_CHANGE' && event.data?.id === id && event.data.status;
        if (status && statuses.includes(status)) return status;
      }
      await new Promise<void>((resolve) => {
        const look = (): void => {
          this.#waiting.delete(look);
          resolve();
        };
        this.#waiting.add(look);
      });
    }
  }

  async end(): Promise<void> {
    if (this.#child.exitCode !== null) return;
    const exited = once(this.#child, 'exit');
    this.#child.kill('SIGKILL');
    await exited;
  }
}

interface Seen {
  readonly op: 'write' | 'zero';
  readonly offset: number;
  readonly length: number;
}

function recorded(disk: FlushSink, seen: Seen[]): NbdExport {
  return {
    size_bytes: disk.size_bytes,
    read_only: false,
    min_block_bytes: disk.min_block_bytes,
    write(offset, data) {
      seen.push({ op: 'write', offset, length: data.length });
      return disk.write(offset, data);
    },
    writeZeroes(offset, length) {
      seen.push({ op: 'zero', offset, length });
      return disk.writeZeroes(offset, length);
    },
    flush: () => disk.flush(),
  };
}

const overlayNode = (name: string, path: string): object => ({
  driver: 'qcow2',
  'node-name': name,
  discard: 'unmap',
  file: { driver: 'file', filename: path, discard: 'unmap' },
  backing: 'base',
});

describe("a flush by QEMU's backup job", { timeout: 300_000 }, () => {
  let folder: string;
  let qemu: Qemu;
  let server: NbdServer;
  let store: FolderStore;
  const pool = new CompressPool();
  const segments: SegmentRef[] = [];
  let generation = 0;

  before(async () => {
    folder = await mkdtemp(join(tmpdir(), 'berth-backup-'));
    store = await FolderStore.open(join(folder, 'store'));
    server = await NbdServer.listen({ path: join(folder, 'block.sock') });
    const base = join(folder, 'base.raw');
    await writeFile(base, Buffer.concat([randomBytes(8 * MIB), Buffer.alloc(DISK_BYTES - 8 * MIB)]));
    for (const name of ['overlay', 'restored']) {
      const options = 'extended_l2=on,cluster_size=128k,lazy_refcounts=on';
      const backing = ['-b', base, '-F', 'raw'];
      execFileSync('qemu-img', [
        'create',
        '-q',
        '-f',
        'qcow2',
        '-o',
        options,
        ...backing,
        join(folder, `${name}.qcow2`),
      ]);
    }
    qemu = new Qemu([
      ...[
        '-blockdev',
        JSON.stringify({
          driver: 'raw',
          'node-name': 'base',
          'read-only': true,
          file: { driver: 'file', filename: base },
        }),
      ],
      ...['-blockdev', JSON.stringify(overlayNode('overlay', join(folder, 'overlay.qcow2')))],
    ]);
    await qemu.command('qmp_capabilities');
    await qemu.command('block-dirty-bitmap-add', {
      node: 'overlay',
      name: 'dirty',
      granularity: BLOCK_BYTES,
    });
    await qemu.command('nbd-server-start', {
      addr: { type: 'unix', data: { path: join(folder, 'qemu.sock') } },
    });
    await qemu.command('block-export-add', {
      type: 'nbd',
      id: 'overlay',
      'node-name': 'overlay',
      name: 'overlay',
      writable: true,
    });
  });

  after(async () => {
    await qemu?.end();
    await server?.close();
    await pool.close();
    await rm(folder, { recursive: true, force: true });
  });

  async function dirtyBytes(): Promise<number> {
    const nodes = (await qemu.command('query-named-block-nodes', { flat: true })) as {
      'node-name': string;
      'dirty-bitmaps'?: { name: string; count: number }[];
    }[];
    const overlay = nodes.find((node) => node['node-name'] === 'overlay');
    return overlay?.['dirty-bitmaps']?.find(({ name }) => name === 'dirty')?.count ?? -1;
  }

  async function flush(head: BlockMap | undefined, into: ObjectStore = store, meanwhile = async () => {}) {
    generation += 1;
    const name = `flush-${generation}`;
    const ids = { disk_id: 'inst_test', epoch: 1, generation, key_prefix: 'disks/inst_test' };
    const sink = new FlushSink({
      store: into,
      pool,
      data_key: DATA_KEY,
      ...ids,
      size_bytes: DISK_BYTES,
      head,
      spool_bytes: 4 * MIB,
    });
    const seen: Seen[] = [];
    server.addExport(name, recorded(sink, seen));
    const address = { type: 'unix', path: server.path };
    await qemu.command('blockdev-add', { driver: 'nbd', 'node-name': name, server: address, export: name });
    const backup = {
      'job-id': name,
      device: 'overlay',
      target: name,
      sync: 'bitmap',
      bitmap: 'dirty',
      'bitmap-mode': 'on-success',
      'auto-finalize': false,
      'auto-dismiss': false,
    };
    await qemu.command('transaction', { actions: [{ type: 'blockdev-backup', data: backup }] });
    await meanwhile();
    const status = await qemu.job(name, ['pending', 'concluded']);
    const outcome = status === 'pending' ? await sink.finish().catch((error: Error) => error) : undefined;
    const failed = outcome === undefined || outcome instanceof Error;
    if (status === 'pending') {
      await qemu.command(failed ? 'job-cancel' : 'job-finalize', { id: name });
      await qemu.job(name, ['concluded']);
    }
    await qemu.command('job-dismiss', { id: name });
    await qemu.command('blockdev-del', { 'node-name': name });
    await server.removeExport(name);
    if (failed) {
      await sink.abort();
      return undefined;
    }
    segments.push(...outcome.segments);
    return { ...outcome, seen };
  }

  test('sends whole 64 KiB blocks, and only dirty ones', async () => {
    await qemu.io('write -P 1 0 4k');
    await qemu.io('write -P 2 1000k 9k');
    await qemu.io('write -P 3 10M 7M');
    await qemu.io('write -z 3M 1M'); // over data of the base image
    const dirty = await dirtyBytes();
    const result = await flush(undefined);
    assert(result);
    for (const { offset, length } of result.seen) {
      assert.equal(offset % BLOCK_BYTES, 0);
      assert.equal(length % BLOCK_BYTES, 0);
    }
    assert.equal(result.dirty_bytes, dirty);
    assert.equal(await dirtyBytes(), 0);
    assert.deepEqual(
      new Set(result.seen.filter(({ op }) => op === 'zero').map(({ offset }) => offset)),
      new Set([3 * MIB]),
    );
    // What QEMU 7.2 was seen to send: runs of dirty blocks of up to 1 MiB.
    assert(result.seen.every(({ length }) => length <= MIB));
  });

  test('leaves out blocks rewritten with the same content', async () => {
    await qemu.io('write -P 3 10M 1M');
    await qemu.io('write -P 4 40M 128k');
    const result = await flush(await loadMap({ store, keys, layers: segments }));
    assert(result);
    assert.equal(result.dirty_bytes, MIB + 128 * 1024);
    assert.equal(result.skipped_bytes, MIB);
    assert.equal(result.blocks, 2);
  });

  test('records zeroes for discarded blocks', async () => {
    await qemu.io('discard 12M 2M');
    await qemu.io('write -z -u 0 256k');
    const result = await flush(await loadMap({ store, keys, layers: segments }));
    assert(result);
    const map = await loadMap({ store, keys, layers: segments });
    for (let block = 0; block < 4; block++) assert(map.isZero(block), `block ${block}`);
    for (let at = 12 * MIB; at < 14 * MIB; at += BLOCK_BYTES) assert(map.isZero(at / BLOCK_BYTES));
  });

  test('makes no segment of an unchanged disk', async () => {
    const result = await flush(await loadMap({ store, keys, layers: segments }));
    assert.deepEqual(result?.segments, []);
    assert.equal(result?.dirty_bytes, 0);
  });

  test('keeps every dirty bit when it fails, also later ones, and leaves nothing in the store', async () => {
    const before = await countObjects(store);
    await writeFile(join(folder, 'noise'), randomBytes(12 * MIB)); // what does not compress fills several segments
    await qemu.io(`write -s ${join(folder, 'noise')} 20M 12M`);
    await qemu.io('write -P 7 50M 64k');
    const dirty = await dirtyBytes();
    // As a guest's: through a frontend, before which the job puts its copy-before-write filter.
    const guest = await NbdClient.connect({ path: join(folder, 'qemu.sock'), export_name: 'overlay' });
    let puts = 0;
    const full: ObjectStore = {
      description: 'a store that fills up',
      put: (key, body, signal) =>
        ++puts > 1 ? Promise.reject(new ObjectStoreUnavailableError('full')) : store.put(key, body, signal),
      get: (...args) => store.get(...args),
      size: (key) => store.size(key),
      list: (prefix) => store.list(prefix),
      delete: (key) => store.delete(key),
      check: () => store.check(),
    };
    assert.equal(
      await flush(await loadMap({ store, keys, layers: segments }), full, () =>
        guest.write(60 * MIB, Buffer.alloc(BLOCK_BYTES, 8)),
      ),
      undefined,
    );
    assert.equal(await dirtyBytes(), dirty + BLOCK_BYTES);
    assert.equal(await countObjects(store), before);
    await guest.disconnect();
    const result = await flush(await loadMap({ store, keys, layers: segments }));
    assert.equal(result?.dirty_bytes, dirty + BLOCK_BYTES);
  });

  test('is restored into a new overlay, byte for byte', async () => {
    await qemu.command('blockdev-add', overlayNode('restored', join(folder, 'restored.qcow2')));
    await qemu.command('block-export-add', {
      type: 'nbd',
      id: 'restored',
      'node-name': 'restored',
      name: 'restored',
      writable: true,
    });
    const path = join(folder, 'qemu.sock');
    const target = await NbdClient.connect({ path, export_name: 'restored', allocation: true });
    const map = await loadMap({ store, keys, layers: segments });
    const progress = await restoreDisk({ store, map, keys, target, pool });
    assert.equal(progress.done_blocks, map.count);
    const source = await NbdClient.connect({ path, export_name: 'overlay' });
    for (let at = 0; at < DISK_BYTES; at += 4 * MIB) {
      const [expected, found] = await Promise.all([source.read(at, 4 * MIB), target.read(at, 4 * MIB)]);
      assert(expected.equals(found), `the 4 MiB at ${at}`);
    }
    const content = await target.read(60 * MIB, BLOCK_BYTES);
    assert(content.every((byte) => byte === 8));
    await Promise.all([source.disconnect(), target.disconnect()]);
  });
});

async function countObjects(store: ObjectStore): Promise<number> {
  let count = 0;
  for await (const _ of store.list('')) count += 1;
  return count;
}
