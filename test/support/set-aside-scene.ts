/**
 * Lets an agent meet an overlay that it must set aside, because the database has lost the head that the overlay names.
 * `takeStep` stops or starts the instance there. The file is also a program (`ROOT INSTANCE stop|start`), which
 * `die-at-step.ts` kills at a chosen step.
 */
import { mkdir, writeFile } from 'node:fs/promises';
import { pathsIn } from '../../src/config/paths.ts';
import { DiskState } from '../../src/host/disk/disk-state.ts';
import {
  type NoteLoss,
  overlayPaths,
  prepareOverlay,
  writeSidecar,
} from '../../src/host/disk/overlay-files.ts';
import { findUnsavedWrites } from '../../src/host/reconciler/local-vm.ts';
import { readLoss, vmFolder, writeLoss } from '../../src/host/vm/record.ts';
import { type InstanceId, isId, newId } from '../../src/shared/ids.ts';
import { diskContextOf, headOf } from './host-folders.ts';
import { qcow2Head } from './qcow2-head.ts';

const MIB = 2 ** 20;

export type How = 'stop' | 'start';

/** A host's files: an overlay of VM and head that the database does not know. */
export async function hostWithOverlay(root: string): Promise<InstanceId> {
  const instance_id = newId('inst');
  const { overlays, vms } = pathsIn(root);
  for (const folder of [overlays, vms]) await mkdir(folder, { recursive: true });
  await writeFile(overlayPaths(overlays, instance_id).overlay, qcow2Head(2 * MIB));
  await writeSidecar(overlays, instance_id, {
    ...{ generation: 4, commit_id: 'lost', vm_id: newId('vm'), placement: 2 },
    ...{ clean: false, sync_failed: false, filled: 'yes', image_version: null },
  });
  return instance_id;
}

/** Takes the step, as an agent that was just started. Returns the loss that it has to report. */
export async function takeStep(root: string, instance_id: InstanceId, how: How): Promise<string | null> {
  const paths = pathsIn(root);
  const folder = vmFolder(paths.vms, instance_id);
  const head = headOf(instance_id, { generation: 3, commit_id: 'head', size_bytes: 2 * MIB });
  // A suspended VM's memory matches the head alone, although its host's overlay is ahead.
  const lineage = { known: false, continues: how === 'stop' };
  const context = await diskContextOf(root, head, lineage);
  const disk = new DiskState(context, instance_id);
  const noteLoss: NoteLoss = (reason, set_aside) => writeLoss(folder, { reason, epoch: 2, set_aside });
  const placement = { vm_id: newId('vm'), epoch: 2 };
  const since = { own_since: 1, last_ran_epoch: 1 };
  if (how === 'stop') {
    const said = { suspended: true, resume: null, previous_failed: false, guest_ran: true };
    await findUnsavedWrites({ context, disk, noteLoss }, { ...placement, ...since, ...said }, null);
  } else {
    await disk.refresh();
    const verdict = await disk.judgeOverlay(since);
    const writes = { all_durable: false, may_have_written: false };
    const host = { paths, log: context.log, qemu_img_binary: 'qemu-img', jail: null };
    await prepareOverlay(
      { context: host, instance_id, disk, owner: null, placement, writes, noteLoss },
      verdict,
    );
  }
  return (await readLoss(folder))?.reason.code ?? null;
}

if (import.meta.main) {
  const [root = '', instance_id = '', how] = process.argv.slice(2);
  if (!isId('inst', instance_id)) throw new Error('no instance is named');
  process.stdout.write(String(await takeStep(root, instance_id, how === 'stop' ? 'stop' : 'start')));
}
