/** What a boot has to say of what is lost outlives the agent that launched it, until it was said. */
import assert from 'node:assert/strict';
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { test } from 'node:test';
import type { Assignment } from '../../src/agent-api/types.ts';
import { BootSlots } from '../../src/host/boot-slots.ts';
import type { HostContext } from '../../src/host/host-context.ts';
import { LocalVm } from '../../src/host/runner/local-vm.ts';
import { newId } from '../../src/lib/ids.ts';
import { createLog } from '../../src/lib/log.ts';
import { hostFolders } from '../support/host-folders.ts';

const image_dir = process.env['BERTH_TEST_IMAGE_DIR'];
const skip = image_dir ? false : 'BERTH_TEST_IMAGE_DIR names no guest image';
const MIB = 2 ** 20;

test('an adopting agent reports the loss of a boot once', { skip }, async (t) => {
  const { root, paths, instance_id, folder } = await hostFolders(t);
  const rootfs_path = join(root, 'rootfs.img');
  await writeFile(rootfs_path, Buffer.alloc(MIB));
  const [kernel_path, initrd_path] = ['vmlinuz', 'initrd.img'].map((name) => join(image_dir ?? '', name));
  const image = { id: 'debian-12', version: '1'.repeat(64), kernel_path, initrd_path, rootfs_path };
  const head = { generation: 0, commit_id: 'a', epoch: 2, size_bytes: 2 * MIB, layers: [], keys: [] };
  const context = {
    ...{ paths, log: createLog('test', 'silent'), vm_gid: null, cgroups: null, accel: 'tcg' },
    ...{ network: null, egress: { requireEnforced: () => undefined } },
    ...{ qemu_binary: 'qemu-system-x86_64', qemu_img_binary: 'qemu-img', boots: new BootSlots(1) },
    client: { head: async () => head, lineage: async () => ({ known: true, continues: true }) },
    ...{ images: { forDisk: async () => image } },
    ...{ lease: { require: () => undefined }, templates: { find: async () => null } },
  } as unknown as HostContext;
  const assignment = {
    ...{ instance_id, vm_id: newId('vm'), boot: 2, epoch: 2, own_since: 1, previous_failed: true },
    ...{ resume: null, spec: { image: 'debian-12', ssh_port: 1, cpus: 1, memory_mib: 64, hostname: 'x' } },
  } as unknown as Assignment;
  const agent = async () => {
    const held = new LocalVm(context, instance_id, folder, () => undefined);
    await held.adopt((work) => work());
    return held;
  };
  let held = await agent();
  // Before its folders are removed, which are written to while it runs.
  try {
    await held.launch(assignment, new AbortController().signal, { run: true });
    held.release();
    held = await agent();
    assert.equal(held.recovered?.code, 'recovered');
    await held.noteReported();
    held.release();
    held = await agent();
    assert.equal(held.recovered, null);
  } finally {
    await held.end();
  }
});
