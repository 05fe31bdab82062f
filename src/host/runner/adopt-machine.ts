/**
 * Adopts the machine that an earlier agent left, and completes or undoes the work that the agent's death interrupted: a freeze, a
 * suspend, a flush, or the filling of an overlay.
 *
 * Invariant: the lazy export is served before QEMU is spoken to. QEMU may wait for a read, and answers nothing before it.
 */
import { existsSync } from 'node:fs';
import { settleFlush } from '../flush/flush-machine.ts';
import type { HostContext } from '../host-context.ts';
import { Machine } from '../machine/machine.ts';
import type { VmFolder, VmRecord } from '../machine/record.ts';
import { FencedError } from '../overlay/commit-outcome.ts';
import type { DiskState } from '../overlay/disk-state.ts';
import { LazyOverlay } from '../overlay/lazy-overlay.ts';
import { fillMachine } from '../start/launch-machine.ts';
import { cancelSuspend } from '../suspend/suspend-machine.ts';
import { isAlive, userOf } from '../vm/process-identity.ts';
import { takeRuntimeDir, type VmUser } from '../vm/uid.ts';
import { vmSockets } from '../vm/vm-spec.ts';

export interface Adoption {
  readonly context: HostContext;
  readonly folder: VmFolder;
  readonly record: VmRecord;
  readonly disk: DiskState;
  readonly changed: () => void;
}

/** Retries until it succeeds or the machine is gone. */
export type Retry = (work: () => Promise<void>) => Promise<void>;

/** null: its process is gone or was ended. On an error nothing is held, and the caller may try again. */
export async function adoptMachine(adoption: Adoption): Promise<Machine | null> {
  const { context, folder, record, disk, changed } = adoption;
  const owner = takeSockets(adoption);
  const lazy = await serveAgain(adoption, owner);
  const options = { folder, record, log: context.log, changed, lazy, owner, guest_network: context.network };
  const machine = await Machine.adopt(options).catch(async (error: unknown) => {
    await lazy?.close();
    throw error;
  });
  if (!machine) {
    await lazy?.close();
    return null;
  }
  if (!isLaunched(record)) {
    await machine.end();
    return null;
  }
  disk.setOverlayImage(record.image_version);
  context.log.info({ vm_id: record.vm_id, pid: record.identity.pid }, 'VM adopted');
  return machine;
}

/** False: the agent died during the launch, and nobody has used the guest. The launch begins again. */
export function isLaunched({ released, template }: VmRecord): boolean {
  return released && template?.awake !== false;
}

/** Finishes or undoes what the earlier agent had begun with this machine. */
export async function repairMachine(machine: Machine, disk: DiskState, retry: Retry): Promise<void> {
  // With durable memory no flush is left to settle, and the disk must not change.
  if (machine.record.memory) return;
  if (machine.record.suspending) await retry(() => cancelSuspend(machine));
  await retry(() => unlessFenced(settleFlush(machine, disk)));
  const { lazy } = machine;
  if (!lazy) return;
  await retry(() =>
    unlessFenced(
      (async () => {
        await disk.refresh();
        fillMachine(machine, lazy);
      })(),
    ),
  );
}

/** Before any file in the sockets' folder is touched: an earlier agent may have left the folder to the VM's user. */
function takeSockets({ context, folder: { runtime }, record }: Adoption): VmUser | null {
  const { vm_gid: gid } = context;
  const uid = gid === null ? null : userOf(record.identity);
  if (uid === null || gid === null) return null;
  if (existsSync(runtime)) takeRuntimeDir(runtime, uid, Object.values(vmSockets(runtime)));
  return { uid, gid };
}

async function serveAgain(
  { context, folder, record, disk }: Adoption,
  owner: VmUser | null,
): Promise<LazyOverlay | null> {
  const { lazy } = record;
  if (!lazy || !isAlive(record.identity)) return null;
  disk.setFilled('no');
  return LazyOverlay.open({ context, runtime_dir: folder.runtime, disk, owner, ...lazy });
}

/** A fenced VM needs no repair: it is ended once its assignment arrives. */
async function unlessFenced(work: Promise<void>): Promise<void> {
  try {
    await work;
  } catch (error) {
    if (!(error instanceof FencedError)) throw error;
  }
}
