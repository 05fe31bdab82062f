/** Over which image an overlay is opened whose disk has no generation yet, and whose image the control plane does not know. */
import assert from 'node:assert/strict';
import { readdir, readFile, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import type { DiskStateContext } from '../../src/host/disk/disk-state.ts';
import { DiskState } from '../../src/host/disk/disk-state.ts';
import {
  inspectOverlay,
  type OverlaySidecar,
  overlayPaths,
  readSidecar,
  writeSidecar,
} from '../../src/host/disk/overlay-files.ts';
import type { HostContext } from '../../src/host/host-context.ts';
import type { LocalImage } from '../../src/host/images/host-images.ts';
import { type Launch, launchMachine } from '../../src/host/vm/launch-machine.ts';
import type { vmFolder } from '../../src/host/vm/record.ts';
import type { Assignment } from '../../src/protocol/types.ts';
import { newId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { headOf, hostFolders } from '../support/host-folders.ts';
import { only } from '../support/only.ts';
import { qcow2Head } from '../support/qcow2-head.ts';

const image_dir = process.env['BERTH_TEST_IMAGE_DIR'];
const skip = image_dir ? false : 'BERTH_TEST_IMAGE_DIR names no guest image';
const [V1, V2] = ['1'.repeat(64), '2'.repeat(64)];
const MIB = 2 ** 20;

interface Scene {
  readonly overlays: string;
  readonly asked: (string | null)[];
  readonly instance_id: ReturnType<typeof newId<'inst'>>;
  readonly folder: ReturnType<typeof vmFolder>;
  /** Of the disk and the host, as they are now. */
  readonly now: { image_version: string | null; newest: string | null };
  readonly losses: { readonly code: string; readonly set_aside: boolean }[];
  /** Starts its guest, as the placement `epoch`. */
  open(epoch: number): ReturnType<typeof launchMachine>;
}

/** Of a VM that the database knows. */
const lineage = async () => ({ known: true, continues: true });

async function sceneOf(t: TestContext): Promise<Scene> {
  const { root, paths, instance_id, folder } = await hostFolders(t);
  const now: Scene['now'] = { image_version: null, newest: null };
  const asked: (string | null)[] = [];
  const forDisk = async (id: string, version: string | null) => {
    asked.push(version);
    if (now.newest === null) throw new Error('no image is to be had');
    const rootfs_path = join(root, version ?? now.newest);
    await writeFile(rootfs_path, Buffer.alloc(MIB));
    const [kernel_path, initrd_path] = [
      join(image_dir ?? '', 'vmlinuz'),
      join(image_dir ?? '', 'initrd.img'),
    ];
    return only<LocalImage>({ id, version: version ?? now.newest, kernel_path, initrd_path, rootfs_path });
  };
  const head = () => {
    const { image_version } = now;
    return headOf(instance_id, {
      generation: 0,
      commit_id: 'made',
      epoch: 0,
      size_bytes: 2 * MIB,
      image_version,
    });
  };
  const context = only<HostContext>({
    ...{ paths, log: createLog('test', 'silent'), vm_gid: null, cgroups: null, accel: 'tcg' },
    ...{ store: {}, pool: {}, jail: null },
    ...{ qemu_binary: 'qemu-system-x86_64', qemu_img_binary: 'qemu-img' },
    ...{
      client: { head: async () => head(), lineage },
      images: { forDisk },
      lease: { require: () => undefined },
      egress: { requireEnforced: () => undefined },
      runs: { fetched: { requests: 0, bytes: 0 } },
      network: null,
    },
  });
  const losses: Scene['losses'] = [];
  const open = (epoch: number) => {
    const spec = { image: 'debian-12', slot: 1, cpus: 1, memory_mib: 64, hostname: 'x' };
    const assignment = {
      ...{ instance_id, vm_id: newId('vm'), boot: epoch, epoch, own_since: 1, last_ran_epoch: 0, spec },
      ...{ suspended: false, resume: null, previous_failed: false, guest_ran: false },
      ...{ flush_id: null, host_key_new: false, authorized_keys: [], secrets: [], user_data: false },
    };
    const launch: Launch = {
      noteLoss: async ({ code }, set_aside) => {
        losses.push({ code, set_aside });
      },
      ...{
        context,
        disk: new DiskState(context, instance_id),
        assignment: only<Assignment>(assignment),
      },
      ...{ ran: false, consumer: 'it', changed: () => undefined, signal: new AbortController().signal },
    };
    return launchMachine(launch, { run: true });
  };
  return { overlays: paths.overlays, asked, instance_id, folder, now, open, losses };
}

test('an overlay is opened over its own image, even when there is a newer one', {
  skip,
}, async (t) => {
  const { overlays, asked, instance_id, now, open } = await sceneOf(t);
  for (const [epoch, newest] of [
    [1, V1],
    [2, V2],
    [3, V2],
  ] as const) {
    now.newest = newest;
    const machine = await open(epoch);
    await machine.end();
    assert.equal(machine.record.image_version, V1);
    const { image_version, placement } = (await readSidecar(overlays, instance_id)) as OverlaySidecar;
    assert.deepEqual({ image_version, placement }, { image_version: V1, placement: epoch });
  }
  assert.deepEqual(asked, [null, V1, V1]);
});

const SINCE = { own_since: 1, last_ran_epoch: 0 };
const UNSAVED: OverlaySidecar = {
  ...{ generation: 0, commit_id: 'made', vm_id: newId('vm'), placement: 1 },
  ...{ clean: false, sync_failed: false, filled: 'yes', image_version: null },
};
const QCOW2 = qcow2Head(2 * MIB);
const cases: readonly {
  readonly what: string;
  readonly sidecar: OverlaySidecar;
  readonly head?: string;
  readonly asked: string | null;
}[] = [
  { what: 'its sidecar', sidecar: { ...UNSAVED, image_version: V1 }, asked: V1 },
  { what: 'what is newest, where nothing says', sidecar: UNSAVED, asked: null },
  { what: 'the disk’s head', sidecar: { ...UNSAVED, image_version: V1 }, head: V2, asked: V2 },
];
for (const { what, sidecar, head, asked: expected } of cases) {
  test(`an overlay has the image of ${what}, also after a failed start`, async (t) => {
    const { overlays, asked, instance_id, now, open } = await sceneOf(t);
    await writeFile(overlayPaths(overlays, instance_id).overlay, QCOW2);
    await writeSidecar(overlays, instance_id, sidecar);
    now.image_version = head ?? null;
    await assert.rejects(open(2), /no image is to be had/);
    assert.deepEqual(asked, [expected]);
    const kept = (await readSidecar(overlays, instance_id)) as OverlaySidecar;
    assert.equal(kept.image_version, expected);
  });
}

test('an overlay that names another file is set aside unopened, and the disk is restored from its head', {
  skip,
}, async (t) => {
  const { overlays, instance_id, folder, now, open, losses } = await sceneOf(t);
  const { overlay } = overlayPaths(overlays, instance_id);
  const crafted = qcow2Head(2 * MIB, { backing_file: join(overlays, 'secret') });
  await writeFile(overlay, crafted);
  await writeSidecar(overlays, instance_id, UNSAVED);
  now.newest = V1;
  const machine = await open(2);
  try {
    assert.deepEqual(losses, [{ code: 'recovered', set_aside: true }]);
    const [kept = ''] = (await readdir(join(overlays, 'aside'))).filter((name) => name.endsWith('.qcow2'));
    assert.ok((await readFile(join(overlays, 'aside', kept))).equals(crafted));
    assert.deepEqual(await inspectOverlay(overlay), { size_bytes: 2 * MIB, problem: null });
    assert.doesNotMatch(await readFile(folder.qemu_log, 'utf8'), /secret/);
  } finally {
    await machine.end();
  }
});

test('a void overlay does not nextStep the image', async (t) => {
  const { overlays, asked, instance_id, open } = await sceneOf(t);
  await writeFile(overlayPaths(overlays, instance_id).overlay, QCOW2);
  await writeSidecar(overlays, instance_id, { ...UNSAVED, placement: 0, image_version: V1 });
  await assert.rejects(open(2), /no image is to be had/);
  assert.deepEqual(asked, [null]);
});

test('a damaged overlay is removed if its disk is durable, and set aside if it may have more', async (t) => {
  const { paths, instance_id } = await hostFolders(t);
  const head = headOf(instance_id, { generation: 3, commit_id: 'three', size_bytes: 65_536 });
  const context = only<DiskStateContext>({
    ...{ paths, log: createLog('test', 'silent'), client: { head: async () => head, lineage } },
  });
  const disk = new DiskState(context, instance_id);
  await disk.refresh();
  const sidecar = { ...UNSAVED, generation: 3, commit_id: 'three', placement: 2 };
  for (const spoilt of [Buffer.alloc(0), Buffer.alloc(4096)]) {
    await writeFile(overlayPaths(paths.overlays, instance_id).overlay, spoilt);
    await writeSidecar(paths.overlays, instance_id, { ...sidecar, clean: true });
    assert.deepEqual(await disk.judgeOverlay(SINCE), { use: 'none', otherwise: 'remove', loss: 'none' });
    await writeSidecar(paths.overlays, instance_id, { ...sidecar, clean: false });
    assert.deepEqual(await disk.judgeOverlay(SINCE), { use: 'none', otherwise: 'set aside', loss: 'some' });
  }
});
