/** What of an overlay is on the host's disk when something says so: with real power cuts, and a disk that refuses a sync. */
import assert from 'node:assert/strict';
import { execFileSync, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { NbdError } from '../../src/host/block/nbd-export.ts';
import type { HostContext } from '../../src/host/host-context.ts';
import { DiskState } from '../../src/host/overlay/disk-state.ts';
import { OverlayExport } from '../../src/host/overlay/overlay-export.ts';
import { QmpClient } from '../../src/host/qmp/qmp-client.ts';
import { createOverlay } from '../../src/host/vm/overlay.ts';
import { NODES } from '../../src/host/vm/qemu-command.ts';
import { readSidecar } from '../../src/host/vm/sidecar.ts';
import { newId } from '../../src/lib/ids.ts';
import { CANNOT_CUT_DISKS, CutDisk } from '../support/cut-disk.ts';
import { until, untilWorks } from '../support/waiting.ts';

const MIB = 2 ** 20;

/** A disk's state whose overlay lies on a disk that can be cut. */
async function sceneOf(t: TestContext) {
  const mount_point = mkdtempSync(join(tmpdir(), 'bod-'));
  const disk = new CutDisk(mount_point);
  t.after(async () => {
    await disk.dispose();
    rmSync(mount_point, { recursive: true, force: true });
  });
  const overlays = join(mount_point, 'overlays');
  await mkdir(overlays);
  const [instance_id, vm_id] = [newId('inst'), newId('vm')];
  const head = { generation: 3, commit_id: 'three', epoch: 2, size_bytes: 64 * MIB, layers: [], keys: [] };
  const client = { head: async () => head, lineage: async () => ({ known: true, continues: true }) };
  const context = { paths: { overlays }, client } as unknown as HostContext;
  const state = new DiskState(context, instance_id);
  await state.refresh();
  const paths = await createOverlay({
    ...{ folder: overlays, instance_id, size_bytes: 64 * MIB, qemu_img_binary: 'qemu-img' },
  });
  return { disk, overlays, instance_id, placement: { vm_id, epoch: 2 }, state, paths };
}

for (const seed of [1, 2, 3]) {
  test(`an overlay that is marked clean is on the disk, power cut ${seed}`, {
    skip: CANNOT_CUT_DISKS,
  }, async (t) => {
    const { disk, overlays, instance_id, placement, state, paths } = await sceneOf(t);
    // As a killed QEMU leaves it: in the host's cache alone.
    const written = randomBytes(8 * MIB);
    writeFileSync(paths.overlay, written, { flag: 'r+' });
    await state.markClean(placement);
    await disk.cut(seed);
    await disk.comeBack();
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
    await disk.comeBack();
    await state.refresh();
    assert.deepEqual(await state.judgeOverlay(1), { use: 'unsaved', otherwise: 'remove' });
    execFileSync('qemu-img', ['check', '-q', paths.overlay]);
  });
}

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
