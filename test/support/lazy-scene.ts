/**
 * Starts a disk from the object store without a guest: a QEMU whose overlay reads from the lazy export, the NBD server
 * that fetches blocks when they are read. An NBD export of QEMU, or qemu-io through the monitor, replaces the guest.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { createHash, randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { type FileHandle, mkdtemp, open, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { BlockMap } from '../../src/disk-format/block-map.ts';
import { CompressPool } from '../../src/disk-format/compress-pool.ts';
import { KeyRing, newDataKey } from '../../src/disk-format/frame-cipher.ts';
import { loadMap } from '../../src/disk-format/load-map.ts';
import { BLOCK_BYTES } from '../../src/disk-format/segment-format.ts';
import { FlushSink } from '../../src/host/disk/flush-sink.ts';
import { LazyDisk } from '../../src/host/disk/lazy-disk.ts';
import { NbdClient } from '../../src/host/disk/nbd-client.ts';
import { NbdServer } from '../../src/host/disk/nbd-server.ts';
import { RunCache } from '../../src/host/disk/run-cache.ts';
import { NODES, overlayNode } from '../../src/host/qemu/qemu-command.ts';
import { QmpClient } from '../../src/host/qemu/qmp-client.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import {
  type ByteRange,
  type ObjectStore,
  ObjectStoreUnavailableError,
} from '../../src/object-store/object-store.ts';
import { untilWorks } from './waiting.ts';

export const MIB = 1024 * 1024;
export const DISK_BYTES = 64 * MIB;
const BASE_BYTES = 8 * MIB;
const LAZY = 'lazy';

/** A store that can be unavailable, delay its answers, or return wrong bytes. */
class FaultyStore {
  away = false;
  gets = 0;
  bytes = 0;
  /** If set, reads wait for it. */
  held: Promise<void> | undefined;
  /** Changes the bytes of an object when they are read. */
  twist: (key: string, body: Buffer) => Buffer = (_, body) => body;
  readonly store: ObjectStore;

  constructor(inner: ObjectStore) {
    this.store = {
      description: 'a faulty store',
      put: (key, body, signal) => inner.put(key, body, signal),
      get: async (key: string, range?: ByteRange, signal?: AbortSignal) => {
        this.gets += 1;
        await this.held;
        if (this.away) throw new ObjectStoreUnavailableError('away');
        const body = this.twist(key, await inner.get(key, range, signal));
        this.bytes += body.length;
        return body;
      },
      size: (key) => inner.size(key),
      list: (prefix) => inner.list(prefix),
      delete: (key) => inner.delete(key),
      check: () => inner.check(),
    };
  }
}

export const SCENE_KEY = newDataKey();
const SCENE_KEYS = new KeyRing([SCENE_KEY]);

export class LazyScene {
  readonly folder: string;
  readonly pool = new CompressPool();
  readonly faulty: FaultyStore;
  /** The expected content of the disk. */
  readonly content: Buffer;
  readonly base: FileHandle;
  map: BlockMap;
  /** How often the map was requested again, and the answer to those requests. */
  reloads = 0;
  reloaded: (() => Promise<BlockMap>) | undefined;
  lazy: LazyDisk;
  runs: RunCache;
  #server: NbdServer | undefined;
  #qemu: { readonly child: ChildProcess; readonly qmp: QmpClient } | undefined;

  private constructor(folder: string, store: FaultyStore, content: Buffer, base: FileHandle, map: BlockMap) {
    this.folder = folder;
    this.faulty = store;
    this.content = content;
    this.base = base;
    this.map = map;
    this.runs = new RunCache({ store: store.store, pool: this.pool });
    this.lazy = this.newLazy();
  }

  /** Generation 1: zeroes over the image's first MiB, data in its middle and beyond its end. */
  static async make(): Promise<LazyScene> {
    const folder = await mkdtemp(join(tmpdir(), 'berth-lazy-'));
    const content = Buffer.alloc(DISK_BYTES);
    randomBytes(BASE_BYTES).copy(content);
    await writeFile(join(folder, 'base.raw'), content.subarray(0, BASE_BYTES));
    const store = await FolderStore.open(join(folder, 'store'));
    content.fill(0, 0, MIB);
    randomBytes(2 * MIB).copy(content, 3 * MIB + BLOCK_BYTES);
    randomBytes(12 * MIB).copy(content, 30 * MIB);
    const pool = new CompressPool();
    const sink = new FlushSink({
      ...{ store, pool, disk_id: 'inst_test', epoch: 1, generation: 1, key_prefix: 'disks/inst_test' },
      ...{ data_key: SCENE_KEY, size_bytes: DISK_BYTES, head: undefined, spool_bytes: 4 * MIB },
    });
    await sink.writeZeroes(0, MIB);
    for (const [from, length] of [
      [3 * MIB + BLOCK_BYTES, 2 * MIB],
      [30 * MIB, 12 * MIB],
    ] as const) {
      for (let at = from; at < from + length; at += MIB)
        await sink.write(at, Buffer.from(content.subarray(at, at + MIB)));
    }
    const { segments } = await sink.finish();
    await pool.close();
    const faulty = new FaultyStore(store);
    const map = await loadMap({ store, layers: segments, keys: SCENE_KEYS });
    return new LazyScene(folder, faulty, content, await open(join(folder, 'base.raw'), 'r'), map);
  }

  newLazy(): LazyDisk {
    return new LazyDisk({
      size_bytes: DISK_BYTES,
      base: this.base,
      runs: this.runs,
      map: async (anew) => {
        if (anew) this.reloads += 1;
        if (anew && this.reloaded) this.map = await this.reloaded();
        return this.map;
      },
      keys: () => SCENE_KEYS,
    });
  }

  /** Serves the export like a newly started agent, without cached state. */
  async serve(): Promise<void> {
    this.runs = new RunCache({ store: this.faulty.store, pool: this.pool });
    this.lazy = this.newLazy();
    this.#server = await NbdServer.listen({ path: join(this.folder, 'lazy.sock') });
    this.#server.addExport(LAZY, this.lazy);
  }

  /** Cuts the server off like a killed agent: connections break. The socket's file may remain. */
  async cut(): Promise<void> {
    const cut = this.#server?.cut();
    this.lazy.close();
    await cut;
    this.#server = undefined;
  }

  get qmp(): QmpClient {
    assert(this.#qemu, 'QEMU runs');
    return this.#qemu.qmp;
  }

  /** Starts a QEMU with a new, empty overlay over the lazy export. */
  async startQemu(): Promise<void> {
    await this.serve();
    const overlay = join(this.folder, 'overlay.qcow2');
    const options = 'extended_l2=on,cluster_size=128k';
    execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', '-o', options, overlay, String(DISK_BYTES)]);
    const socket = join(this.folder, 'qmp.sock');
    const nodes = [
      {
        driver: 'file',
        'node-name': NODES.base_file,
        filename: join(this.folder, 'base.raw'),
        'read-only': true,
      },
      { driver: 'raw', 'node-name': NODES.base, file: NODES.base_file, 'read-only': true },
      {
        driver: 'nbd',
        'node-name': NODES.lazy,
        server: { type: 'unix', path: join(this.folder, 'lazy.sock') },
        export: LAZY,
        'reconnect-delay': 3_600,
        'read-only': true,
      },
      { driver: 'file', 'node-name': NODES.overlay_file, filename: overlay, discard: 'unmap' },
      overlayNode(NODES.lazy),
    ];
    const child = spawn(
      'qemu-system-x86_64',
      [
        ...['-S', '-M', 'none', '-nodefaults', '-display', 'none'],
        ...[
          '-chardev',
          `socket,id=qmp,path=${socket},server=on,wait=off`,
          '-mon',
          'chardev=qmp,mode=control',
        ],
        ...nodes.flatMap((node) => ['-blockdev', JSON.stringify(node)]),
      ],
      { stdio: ['ignore', 'ignore', 'inherit'] },
    );
    const qmp = await untilWorks('QEMU listens', () => {
      assert.equal(child.exitCode, null, 'QEMU runs');
      return QmpClient.connect(socket);
    }).catch((error: unknown) => {
      child.kill('SIGKILL');
      throw error;
    });
    this.#qemu = { child, qmp };
    await this.qmp.execute('block-dirty-bitmap-add', {
      node: NODES.overlay,
      name: 'dirty',
      granularity: BLOCK_BYTES,
    });
  }

  get isRunning(): boolean {
    const child = this.#qemu?.child;
    return child !== undefined && child.exitCode === null && child.signalCode === null;
  }

  /** The disk as a guest would see it. Not usable while the overlay is filled, because QEMU has only one NBD server. */
  async guest(): Promise<NbdClient> {
    const path = join(this.folder, 'guest.sock');
    await this.qmp.execute('nbd-server-start', { addr: { type: 'unix', data: { path } } });
    await this.qmp.execute('block-export-add', {
      ...{ type: 'nbd', id: 'guest', 'node-name': NODES.overlay, name: 'guest', writable: true },
    });
    return NbdClient.connect({ path, export_name: 'guest' });
  }

  /** Writes one byte value to a range, as a guest would. */
  async write(pattern: number, offset: number, length: number): Promise<void> {
    const command = `qemu-io ${NODES.overlay} "write -P ${pattern} ${offset} ${length}"`;
    await this.qmp.execute('human-monitor-command', { 'command-line': command });
    this.content.fill(pattern, offset, offset + length);
  }

  async dirtyBytes(): Promise<number> {
    const nodes = await this.qmp.execute('query-named-block-nodes', { flat: true });
    const overlay = nodes.find((node) => node['node-name'] === NODES.overlay);
    return overlay?.['dirty-bitmaps']?.find(({ name }) => name === 'dirty')?.count ?? -1;
  }

  async nodeNames(): Promise<string[]> {
    const nodes = await this.qmp.execute('query-named-block-nodes', { flat: true });
    return nodes.map((node) => node['node-name'] ?? '').sort();
  }

  async assertContent(guest: NbdClient): Promise<void> {
    for (let at = 0; at < DISK_BYTES; at += 4 * MIB) {
      const found = await guest.read(at, 4 * MIB);
      assert.equal(sha(found), sha(this.content.subarray(at, at + 4 * MIB)), `the 4 MiB at ${at}`);
    }
  }

  async endQemu(): Promise<void> {
    const qemu = this.#qemu;
    this.#qemu = undefined;
    if (qemu && qemu.child.exitCode === null && qemu.child.signalCode === null) {
      const exited = once(qemu.child, 'exit');
      qemu.qmp.close();
      qemu.child.kill('SIGKILL');
      await exited;
    }
    await this.cut();
    for (const name of ['overlay.qcow2', 'qmp.sock', 'guest.sock', 'disk.sock'])
      await rm(join(this.folder, name), { force: true });
  }

  async end(): Promise<void> {
    await this.endQemu();
    await this.base.close();
    await this.pool.close();
    await rm(this.folder, { recursive: true, force: true });
  }
}

function sha(bytes: Uint8Array): string {
  return createHash('sha256').update(bytes).digest('hex');
}
