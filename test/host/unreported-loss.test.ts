/** What a boot has to say of what is lost outlives the agent that launched it, until it was said. */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { BootSlots } from '../../src/host/boot-slots.ts';
import type { HostContext } from '../../src/host/host-context.ts';
import type { LocalImage } from '../../src/host/images/host-images.ts';
import { LocalVm } from '../../src/host/reconciler/local-vm.ts';
import type { Assignment } from '../../src/protocol/types.ts';
import { newId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { headOf, hostFolders } from '../support/host-folders.ts';
import { inheritedEnvironment } from '../support/installation.ts';
import { only } from '../support/only.ts';
import { hostWithOverlay, takeStep } from '../support/set-aside-scene.ts';

const image_dir = process.env['BERTH_TEST_IMAGE_DIR'];
const skip = image_dir ? false : 'BERTH_TEST_IMAGE_DIR names no guest image';
const MIB = 2 ** 20;

test('an adopting agent reports the loss of a boot once', { skip }, async (t) => {
  const { root, paths, instance_id, folder } = await hostFolders(t);
  const rootfs_path = join(root, 'rootfs.img');
  await writeFile(rootfs_path, Buffer.alloc(MIB));
  const [kernel_path = '', initrd_path = ''] = ['vmlinuz', 'initrd.img'].map((name) =>
    join(image_dir ?? '', name),
  );
  const image = only<LocalImage>({
    ...{ id: 'debian-12', version: '1'.repeat(64), kernel_path, initrd_path, rootfs_path },
  });
  const head = headOf(instance_id, { generation: 0, commit_id: 'a', size_bytes: 2 * MIB });
  const context = only<HostContext>({
    ...{ paths, log: createLog('test', 'silent'), vm_gid: null, cgroups: null, accel: 'tcg' },
    ...{ store: {}, pool: {}, jail: null },
    ...{ network: null, egress: { requireEnforced: () => undefined } },
    ...{ qemu_binary: 'qemu-system-x86_64', qemu_img_binary: 'qemu-img', boots: new BootSlots(1) },
    client: { head: async () => head, lineage: async () => ({ known: true, continues: true }) },
    ...{ images: { forDisk: async () => image } },
    ...{ lease: { require: () => undefined }, templates: { find: async () => null } },
  });
  const assignment = only<Assignment>({
    ...{ instance_id, vm_id: newId('vm'), boot: 2, epoch: 2, own_since: 1, last_ran_epoch: 1 },
    ...{ previous_failed: true, guest_ran: false, suspended: false },
    ...{ flush_id: null, host_key_new: false, authorized_keys: [], secrets: [], user_data: false },
    ...{ resume: null, spec: { image: 'debian-12', slot: 1, cpus: 1, memory_mib: 64, hostname: 'x' } },
  });
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

for (const how of ['stop', 'start'] as const) {
  test(`the loss of an overlay that is set aside at a ${how} is reported, at whatever step its agent is killed`, async (t) => {
    const root = await mkdtemp(join(tmpdir(), 'bul-'));
    t.after(() => rm(root, { recursive: true, force: true }));
    let step = 1;
    for (let done = false; !done; step++) {
      const data = join(root, String(step));
      const instance = await hostWithOverlay(data);
      done = await endsBefore(step, [data, instance, how]);
      // Where nothing was set aside yet, the next agent finds it as the first one did.
      assert.equal(await takeStep(data, instance, how), 'recovered', `killed at step ${step}`);
      const kept = await readdir(join(data, 'overlays', 'aside'));
      const copies = kept.filter((name) => name.endsWith('.qcow2'));
      assert.equal(copies.length, 1);
      const sidecar = (copies[0] ?? '').replace(/qcow2$/, 'json');
      assert(kept.includes(sidecar), `with its sidecar, killed at step ${step}`);
    }
    assert(step > 10, `${step} steps`);
  });
}

/** Runs the step until its nth change of a file, before which it is killed. True: it has ended before. */
async function endsBefore(step: number, words: readonly string[]): Promise<boolean> {
  const [preload, program] = ['die-at-step.ts', 'set-aside-scene.ts'].map((name) =>
    join(import.meta.dirname, '..', 'support', name),
  );
  const env = { ...inheritedEnvironment(), BERTH_TEST_DIE_AT: String(step) };
  const child = spawn(process.execPath, ['--import', preload ?? '', program ?? '', ...words], {
    stdio: ['ignore', 'ignore', 'inherit'],
    env,
  });
  const [code, signal] = await once(child, 'exit');
  assert(code === 0 || signal === 'SIGKILL', `it ended with ${code ?? signal}`);
  return code === 0;
}
