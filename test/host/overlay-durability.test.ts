/** What of an overlay is on the host's disk when something says so: with real power cuts, and a disk that refuses a sync. */
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import {
  existsSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  renameSync,
  rmdirSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { DiskState } from '../../src/host/disk/disk-state.ts';
import { OverlayExport } from '../../src/host/disk/lazy-overlay.ts';
import { NbdError } from '../../src/host/disk/nbd-protocol.ts';
import {
  createOverlay,
  type OverlaySidecar,
  readSidecar,
  setAsideOverlay,
} from '../../src/host/disk/overlay-files.ts';
import { NODES } from '../../src/host/qemu/qemu-command.ts';
import { QmpClient } from '../../src/host/qemu/qmp-client.ts';
import { newId } from '../../src/shared/ids.ts';
import { CANNOT_CUT_DISKS, CutDisk } from '../support/cut-disk.ts';
import { diskContextOf, headOf } from '../support/host-folders.ts';
import { until, untilWorks } from '../support/waiting.ts';

const MIB = 2 ** 20;

/** A disk's state whose overlay lies on a disk that can be cut. */
async function sceneOf(t: TestContext) {
  const mount_point = mkdtempSync(join(tmpdir(), 'bod-'));
  const disk = new CutDisk(mount_point);
  t.after(() => {
    disk.dispose();
    rmSync(mount_point, { recursive: true, force: true });
  });
  return { disk, ...(await overlayIn(mount_point)) };
}

/** The same on this machine's disk. */
async function uncutSceneOf(t: TestContext) {
  const root = mkdtempSync(join(tmpdir(), 'bod-'));
  t.after(() => rmSync(root, { recursive: true, force: true }));
  return overlayIn(root);
}

async function overlayIn(root: string) {
  const [instance_id, vm_id] = [newId('inst'), newId('vm')];
  const head = headOf(instance_id, { generation: 3, commit_id: 'three', size_bytes: 64 * MIB });
  const context = await diskContextOf(root, head);
  const { overlays } = context.paths;
  await mkdir(overlays);
  const nextAgent = async () => {
    const state = new DiskState(context, instance_id);
    await state.refresh();
    return state;
  };
  const state = await nextAgent();
  const paths = await createOverlay({
    ...{ folder: overlays, instance_id, size_bytes: 64 * MIB, qemu_img_binary: 'qemu-img' },
  });
  return { overlays, instance_id, placement: { vm_id, epoch: 2 }, state, nextAgent, paths };
}

for (const seed of [1, 2, 3]) {
  test(`an overlay that is marked clean is on the disk, power cut ${seed}`, {
    skip: CANNOT_CUT_DISKS,
  }, async (t) => {
    const { disk, overlays, instance_id, placement, state, paths } = await sceneOf(t);
    // As a killed QEMU leaves it: in the host's cache alone.
    const written = randomBytes(8 * MIB);
    writeFileSync(paths.overlay, written, { flag: 'r+' });
    await state.keepAsCache(placement);
    await disk.cut(seed);
    disk.comeBack();
    const sidecar = await readSidecar(overlays, instance_id);
    assert(typeof sidecar === 'object' && sidecar.clean);
    assert(readFileSync(paths.overlay).subarray(0, written.length).equals(written));
  });

  test(`a new overlay with a sidecar is complete, power cut ${seed}`, {
    skip: CANNOT_CUT_DISKS,
  }, async (t) => {
    const { disk, placement, state, paths } = await sceneOf(t);
    await state.markDirty(placement);
    await disk.cut(seed);
    disk.comeBack();
    await state.refresh();
    const { use } = await state.judgeOverlay({ own_since: 1, last_ran_epoch: 0 });
    assert.equal(use, 'unsaved');
    execFileSync('qemu-img', ['check', '-q', paths.overlay]);
  });
}

test('the sidecar of an overlay that is set aside is on the disk with it', {
  skip: CANNOT_CUT_DISKS,
}, async (t) => {
  const { disk, overlays, instance_id, placement, state } = await sceneOf(t);
  await state.markDirty(placement);
  const kept = await setAsideOverlay(overlays, instance_id);
  await disk.cut(1);
  disk.comeBack();
  assert(existsSync(kept));
  const sidecar = JSON.parse(readFileSync(kept.replace(/qcow2$/, 'json'), 'utf8')) as OverlaySidecar;
  assert.deepEqual([sidecar.commit_id, sidecar.vm_id], ['three', placement.vm_id]);
});

test('after a failed sync an overlay is not clean again, also not by the next agent: it is removed once all is saved', async (t) => {
  const { overlays, instance_id, placement, state, paths, nextAgent } = await uncutSceneOf(t);
  await state.markDirty(placement);
  // In the way of a sync, for once.
  renameSync(paths.overlay, `${paths.overlay}.away`);
  mkdirSync(paths.overlay);
  await assert.rejects(state.syncOverlay(placement), /EISDIR/);
  rmdirSync(paths.overlay);
  renameSync(`${paths.overlay}.away`, paths.overlay);
  await state.syncOverlay(placement);
  const later = await nextAgent();
  const { use } = await later.judgeOverlay({ own_since: 1, last_ran_epoch: 0 });
  assert.equal(use, 'unsaved', 'it may have the only copy');
  await later.keepAsCache(placement);
  assert.equal(await readSidecar(overlays, instance_id), 'none');
  assert(!existsSync(paths.overlay));
});

test('an overlay that vanished, or cannot be synced, does not keep a saved VM from its end', async (t) => {
  const { overlays, instance_id, placement, state, paths } = await uncutSceneOf(t);
  await state.markDirty(placement);
  rmSync(paths.overlay);
  await state.keepAsCache(placement);
  assert.equal(await readSidecar(overlays, instance_id), 'none');
});

/** A QEMU without a guest, its overlay on a disk that answers with `errors` (QEMU's blkdebug). */
async function qemuOn(t: TestContext, errors: readonly object[]) {
  const folder = mkdtempSync(join(tmpdir(), 'bod-'));
  t.after(() => rmSync(folder, { recursive: true, force: true }));
  const [overlay, socket] = [join(folder, 'overlay.qcow2'), join(folder, 'qmp.sock')];
  execFileSync('qemu-img', ['create', '-q', '-f', 'qcow2', overlay, String(64 * MIB)]);
  const nodes = [
    {
      ...{ driver: 'blkdebug', 'node-name': NODES.overlay_file },
      ...(errors.length > 0 ? { 'inject-error': errors } : {}),
      image: { driver: 'file', filename: overlay },
    },
    { driver: 'qcow2', 'node-name': NODES.overlay, file: NODES.overlay_file },
  ];
  const chardev = `socket,id=qmp,path=${socket},server=on,wait=off`;
  const child = spawn(
    'qemu-system-x86_64',
    [
      ...['-S', '-M', 'none', '-nodefaults', '-display', 'none'],
      ...['-chardev', chardev, '-mon', 'chardev=qmp,mode=control'],
      ...nodes.flatMap((node) => ['-blockdev', JSON.stringify(node)]),
    ],
    { stdio: 'ignore' },
  );
  t.after(() => child.kill('SIGKILL'));
  const qmp = await untilWorks('QEMU listens', () => QmpClient.connect(socket));
  t.after(() => qmp.close());
  const write = (at: number) =>
    qmp.execute('human-monitor-command', {
      'command-line': `qemu-io ${NODES.overlay} "write -P 7 ${at} 64k"`,
    });
  const exported = new OverlayExport({ qmp, socket_path: join(folder, 'disk.sock'), owner: null });
  return { child, qmp, overlay, write, exported };
}

test('a failed sync is reported, so that no flush is committed', async (t) => {
  const { write, exported } = await qemuOn(t, [{ event: 'flush_to_disk', errno: 5 }]);
  await write(0);
  await assert.rejects(exported.syncToDisk(AbortSignal.timeout(10_000)), NbdError);
});

test('data that QEMU synced is in the file after a kill, with its tables', async (t) => {
  const { child, write, overlay, exported } = await qemuOn(t, []);
  await write(MIB);
  await exported.syncToDisk(AbortSignal.timeout(10_000));
  child.kill('SIGKILL');
  await until('it has ended', () => child.signalCode !== null);
  const read = execFileSync('qemu-io', ['-f', 'qcow2', '-c', `read -P 7 ${MIB} 64k`, overlay]).toString();
  assert.doesNotMatch(read, /verification failed/);
});
