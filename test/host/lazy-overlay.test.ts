/** An overlay that is not whole, below a real QEMU: what is read through it, what fills it, and what goes wrong. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { after, afterEach, before, beforeEach, describe, test } from 'node:test';
import { BLOCK_BYTES } from '../../src/disk-format/segment-format.ts';
import { FlushSink } from '../../src/host/disk/flush-sink.ts';
import { OverlayExport, OverlayFill, type OverlayFillOptions } from '../../src/host/disk/lazy-overlay.ts';
import { NbdError } from '../../src/host/disk/nbd-protocol.ts';
import { NbdServer } from '../../src/host/disk/nbd-server.ts';
import { NODES, overlayNode } from '../../src/host/qemu/qemu-command.ts';
import { QmpTimeoutError, waitForJob } from '../../src/host/qemu/qmp-client.ts';
import { ObjectNotFoundError } from '../../src/object-store/object-store.ts';
import { createLog } from '../../src/shared/log.ts';
import { DISK_BYTES, LazyScene, MIB, SCENE_KEY } from '../support/lazy-scene.ts';
import { until } from '../support/waiting.ts';

const DATA = 30 * MIB;

describe('an overlay over the lazy export', { timeout: 300_000 }, () => {
  let scene: LazyScene;
  before(async () => {
    scene = await LazyScene.make();
  });
  after(() => scene?.end());
  beforeEach(async () => {
    scene.faulty.away = false;
    scene.faulty.held = undefined;
    scene.faulty.twist = (_, body) => body;
    scene.reloaded = undefined;
    await scene.startQemu();
    scene.faulty.gets = 0;
    scene.faulty.bytes = 0;
    scene.reloads = 0;
  });
  afterEach(() => scene.endQemu());

  const exportedBy = (qmp: typeof scene.qmp) =>
    new OverlayExport({ qmp, socket_path: join(scene.folder, 'disk.sock'), owner: null });

  function fill(options: Partial<OverlayFillOptions> = {}): { fill: OverlayFill; filled: Promise<void> } {
    const done = Promise.withResolvers<void>();
    const fill = new OverlayFill({
      exported: exportedBy(scene.qmp),
      lazy: scene.lazy,
      fetch_ahead: true,
      order: [],
      log: createLog('test', 'silent'),
      after_boot_ms: 0,
      reportOrder: async () => {},
      syncFailed: async () => {},
      filled: async () => {
        await scene.qmp.execute('blockdev-reopen', { options: [overlayNode(NODES.base)] });
        await scene.qmp.execute('blockdev-del', { 'node-name': NODES.lazy });
        done.resolve();
      },
      ...options,
    });
    fill.start();
    return { fill, filled: done.promise };
  }

  test('reads like the generation over its image, adjacent blocks by one request', async () => {
    const guest = await scene.guest();
    await scene.assertContent(guest);
    // 14 MiB of data that does not compress, in runs of up to 1 MiB.
    assert(scene.faulty.gets <= 20, `${scene.faulty.gets} requests`);
    const odd = await guest.read(3 * MIB + 512, 3 * BLOCK_BYTES);
    assert(odd.equals(scene.content.subarray(3 * MIB + 512, 3 * MIB + 512 + 3 * BLOCK_BYTES)));
    await guest.disconnect();
  });

  test('is filled even when QEMU is silent at the start and at the end', async () => {
    let starts = 0;
    const silent = new QmpTimeoutError('no reply');
    const execute = (async (command: 'nbd-server-start', ...rest: [never]) => {
      if (command === 'nbd-server-start' && starts++ === 0) throw silent;
      return scene.qmp.execute(command, ...rest);
    }) as typeof scene.qmp.execute;
    const ends: number[] = [];
    const done = Promise.withResolvers<void>();
    const { fill: filling } = fill({
      exported: exportedBy({ execute } as typeof scene.qmp),
      retry_ms: 10,
      filled: async () => {
        ends.push(scene.faulty.gets);
        if (ends.length === 1) throw silent;
        done.resolve();
      },
    });
    filling.booted();
    await done.promise;
    await filling.stop();
    assert.equal(starts, 2);
    assert.equal(ends[1], ends[0], 'nothing is fetched again');
  });

  test('concurrent reads of one run are one request', async () => {
    const guest = await scene.guest();
    const release = Promise.withResolvers<void>();
    scene.faulty.held = release.promise;
    const reads = Array.from({ length: 8 }, (_, i) => guest.read(DATA + i * 4_096, 4_096));
    await until('the store is asked', () => scene.faulty.gets > 0);
    release.resolve();
    await Promise.all(reads);
    assert.equal(scene.faulty.gets, 1);
    await guest.disconnect();
  });

  test('a read waits while the store is away, and no longer', async () => {
    const guest = await scene.guest();
    scene.faulty.away = true;
    const read = guest.read(DATA, BLOCK_BYTES);
    await until('the read waits', () => scene.lazy.stalled);
    scene.faulty.away = false;
    assert((await read).equals(scene.content.subarray(DATA, DATA + BLOCK_BYTES)));
    assert.equal(scene.lazy.stalled, null);
    await guest.disconnect();
  });

  test('a waiting read can be refused, which unblocks QEMU; the next read is served', async () => {
    const guest = await scene.guest();
    const release = Promise.withResolvers<void>();
    scene.faulty.held = release.promise;
    const refused = assert.rejects(guest.read(DATA, BLOCK_BYTES), NbdError);
    await until('the store is asked', () => scene.faulty.gets > 0);
    // Takes a point in time, for which QEMU waits for what is under way.
    const taken = scene.qmp.execute('transaction', {
      actions: [{ type: 'block-dirty-bitmap-clear', data: { node: NODES.overlay, name: 'dirty' } }],
    });
    scene.lazy.refuse();
    await Promise.all([refused, taken]);
    release.resolve();
    scene.faulty.held = undefined;
    assert((await guest.read(DATA, BLOCK_BYTES)).equals(scene.content.subarray(DATA, DATA + BLOCK_BYTES)));
    await guest.disconnect();
  });

  test('a read waits while its server restarts after a kill, and no longer', async () => {
    const guest = await scene.guest();
    const release = Promise.withResolvers<void>();
    scene.faulty.held = release.promise;
    const under_way = guest.read(DATA, BLOCK_BYTES);
    await until('the store is asked', () => scene.faulty.gets > 0);
    await scene.cut();
    const begun_while_away = guest.read(DATA + 8 * MIB, BLOCK_BYTES);
    release.resolve();
    scene.faulty.held = undefined;
    await scene.serve();
    assert((await under_way).equals(scene.content.subarray(DATA, DATA + BLOCK_BYTES)));
    const at = DATA + 8 * MIB;
    assert((await begun_while_away).equals(scene.content.subarray(at, at + BLOCK_BYTES)));
    await guest.disconnect();
  });

  test('wrong bytes are never served: the head is read again, then the segment is named', async () => {
    const guest = await scene.guest();
    let wrong = '';
    scene.faulty.twist = (key, body) => {
      wrong = key;
      const other = Buffer.from(body);
      other[100] = (other[100] ?? 0) ^ 1;
      return other;
    };
    await assert.rejects(guest.read(DATA, BLOCK_BYTES), NbdError);
    assert.equal(scene.lazy.takeDamage()?.key, wrong);
    assert.equal(scene.reloads, 1);
    await assert.rejects(guest.read(DATA + 4_096, 4_096), NbdError);
    assert.equal(scene.reloads, 1);
    scene.faulty.twist = (_, body) => body;
    assert((await guest.read(DATA, BLOCK_BYTES)).equals(scene.content.subarray(DATA, DATA + BLOCK_BYTES)));
    await guest.disconnect();
  });

  test('blocks that were moved to another segment are found through the current head', async () => {
    const guest = await scene.guest();
    const before = scene.map;
    scene.faulty.twist = (key) => {
      throw new ObjectNotFoundError(key);
    };
    scene.reloaded = async () => {
      scene.faulty.twist = (_, body) => body;
      return before;
    };
    assert((await guest.read(DATA, BLOCK_BYTES)).equals(scene.content.subarray(DATA, DATA + BLOCK_BYTES)));
    assert.equal(scene.reloads, 1);
    await guest.disconnect();
  });

  test('is filled around the guest’s writes, marks nothing dirty, and then needs no export', async () => {
    // Sub-clusters of their own, at both ends of clusters: what QEMU 7.2 dies of when asked for half a cluster.
    for (const at of [
      DATA,
      DATA + BLOCK_BYTES - 4_096,
      DATA + 3 * BLOCK_BYTES + 8_192,
      3 * MIB,
      512 * 1024,
    ]) {
      await scene.write(7, at, 4_096);
    }
    const dirty = await scene.dirtyBytes();
    const { fill: filling, filled } = fill();
    filling.booted();
    await filled;
    assert.equal(await scene.dirtyBytes(), dirty);
    assert.deepEqual(await scene.nodeNames(), ['base', 'base-file', 'overlay', 'overlay-file']);
    await scene.cut();
    await filling.stop();
    // Of the filling's; the guest's place is taken by another.
    await scene.qmp.execute('nbd-server-stop', undefined);
    const guest = await scene.guest();
    await scene.assertContent(guest);
    await guest.disconnect();
  });

  test('prefetches the first reads of the last boot, and records those of this one', async () => {
    const first = [DATA / BLOCK_BYTES + 100, DATA / BLOCK_BYTES + 3];
    const guest_reads = DATA / BLOCK_BYTES + 150;
    const told = Promise.withResolvers<readonly number[]>();
    const { fill: filling } = fill({
      order: [...first, 1_023],
      reportOrder: async (blocks) => told.resolve(blocks),
      bytes_per_second: 1,
    });
    await until('both are here', () => scene.lazy.served_bytes >= 4 * BLOCK_BYTES);
    const read = `qemu-io ${NODES.overlay} "read ${guest_reads * BLOCK_BYTES} 4k"`;
    await scene.qmp.execute('human-monitor-command', { 'command-line': read });
    filling.booted();
    const order = await told.promise;
    assert.deepEqual(order.slice(0, 2), first);
    assert(order.includes(guest_reads));
    assert(!order.includes(1_023), 'not in the map');
    await filling.stop();
  });

  test('damage that only the filling met is not the reason of a later failure of the guest', async () => {
    scene.faulty.twist = (_, body) => Buffer.alloc(body.length, 7);
    let passes = 0;
    const log = createLog('test', 'warn', {
      write: (line) => {
        if (line.includes('could be filled')) passes += 1;
      },
    });
    // As of the overlay of a killed VM: QEMU itself reads what is missing.
    const { fill: filling } = fill({ fetch_ahead: false, log });
    filling.booted();
    await until('it has met the damage', () => passes > 0);
    assert.equal(scene.lazy.takeDamage(), null);
    const read = `qemu-io ${NODES.overlay} "read ${DATA} 4k"`;
    await scene.qmp.execute('human-monitor-command', { 'command-line': read });
    assert(scene.lazy.takeDamage(), 'what the guest itself has met is one');
    assert.equal(scene.lazy.takeDamage(), null, 'of this failure alone');
    await filling.stop();
  });

  test('pauses during a flush', async () => {
    const { fill: filling, filled } = fill();
    await until('it is connected', async () =>
      (await scene.qmp.execute('query-block-exports', undefined)).some(({ id }) => id === 'overlay'),
    );
    const go_on = await filling.pause();
    filling.booted();
    const first = await Promise.race([
      filled.then(() => 'filled'),
      until('fetched ahead', () => scene.faulty.gets > 0).then(() => 'resting'),
    ]);
    assert.equal(first, 'resting');
    assert.equal(scene.lazy.served_bytes, 0);
    go_on();
    await filled;
    await filling.stop();
  });

  test('a cancelled flush no longer waits for the running copy', async () => {
    const [begun, end] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const { fill: filling } = fill({
      filled: () => {
        begun.resolve();
        return end.promise;
      },
    });
    filling.booted();
    await begun.promise;
    const wanted = new AbortController();
    const rest = filling.pause(wanted.signal);
    wanted.abort(new Error('something else is wanted'));
    await assert.rejects(rest, /something else is wanted/);
    end.resolve();
    await filling.stop();
  });

  test('when half filled and compared completely, fetches only the blocks of its own writes', async () => {
    await scene.write(9, DATA + 2 * MIB, 4_096);
    await scene.write(9, DATA + 5 * MIB, BLOCK_BYTES);
    const server = await NbdServer.listen({ path: join(scene.folder, 'flush.sock') });
    const ids = { disk_id: 'inst_test', epoch: 1, generation: 2, key_prefix: 'disks/inst_test' };
    const { store } = scene.faulty;
    const sink = new FlushSink({
      ...{ store, pool: scene.pool, ...ids, data_key: SCENE_KEY },
      ...{ size_bytes: DISK_BYTES, head: scene.map },
    });
    server.addExport('flush', sink);
    const target = { driver: 'nbd', 'node-name': 'target', export: 'flush' };
    await scene.qmp.execute('blockdev-add', { ...target, server: { type: 'unix', path: server.path } });
    const job = { 'job-id': 'all', device: NODES.overlay, target: 'target', sync: 'top' } as const;
    await scene.qmp.execute('blockdev-backup', { ...job, 'auto-finalize': false, 'auto-dismiss': false });
    await waitForJob(scene.qmp, 'all', ['pending'], { timeout_ms: 30_000 });
    const { blocks } = await sink.finish();
    await scene.qmp.execute('job-finalize', { id: 'all' });
    await waitForJob(scene.qmp, 'all', ['concluded'], { timeout_ms: 30_000 });
    assert.equal(blocks, 2);
    assert(scene.faulty.bytes <= 3 * MIB, `${scene.faulty.bytes} bytes of 14 MiB were fetched`);
    await server.close();
  });
});
