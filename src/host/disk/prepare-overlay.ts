/** Prepares the overlay that a launch opens: the existing one, grown to the disk's size, or a new one. */
import type { Reason } from '../../protocol/types.ts';
import type { InstanceId } from '../../shared/ids.ts';
import type { HostContext } from '../host-context.ts';
import type { VmUser } from '../qemu/uid.ts';
import type { DiskState, Placement } from './disk-state.ts';
import { type BootWrites, isLost, isSetAside, type OverlayVerdict } from './judge-overlay.ts';
import { createOverlay, ensureRoom, growOverlay, removeOverlay, setAsideOverlay } from './overlay-files.ts';

const SET_ASIDE =
  'an overlay is ahead of the database, or damaged; it is set aside, and the disk comes from the object store';

/** Records durably that something is lost, before it is final. `set_aside`: a copy on this host has it. */
export type NoteLoss = (reason: Reason, set_aside: boolean) => Promise<void>;

export interface OverlayOf {
  readonly context: Pick<HostContext, 'paths' | 'log' | 'qemu_img_binary' | 'jail'>;
  readonly instance_id: InstanceId;
  readonly disk: DiskState;
  readonly owner: VmUser | null;
  readonly placement: Placement;
  readonly writes: BootWrites;
  readonly noteLoss: NoteLoss;
}

/** Removes or sets aside an overlay that is not used. What is lost with it is recorded before. */
export async function prepareOverlay(launch: OverlayOf, verdict: OverlayVerdict): Promise<void> {
  if (isLost(verdict, launch.writes)) {
    const { generation } = launch.disk.head;
    await launch.noteLoss(recoveredFrom(generation, 'this one', verdict), isSetAside(verdict));
  }
  if (verdict.use !== 'none') return growOverlayOf(launch);
  if (isSetAside(verdict)) await setAside(launch);
  await makeOverlay(launch);
}

async function growOverlayOf({ context, instance_id, disk, owner, placement }: OverlayOf): Promise<void> {
  const { size_bytes } = disk.head;
  const { qemu_img_binary, jail, paths } = context;
  const grown = await growOverlay({
    ...{ folder: paths.overlays, instance_id, size_bytes, qemu_img_binary, jail },
    ...(owner ? { owner } : {}),
  });
  if (grown) await disk.syncOverlay(placement);
}

/** Creates a new overlay. */
async function makeOverlay({ context, instance_id, disk, owner }: OverlayOf): Promise<void> {
  await disk.load();
  const folder = context.paths.overlays;
  await removeOverlay(folder, instance_id);
  // The guest starts before its disk is fetched, and must not run out of room meanwhile. The stored size is a lower bound of
  // the unpacked size, so this check never refuses a disk that fits.
  let stored_bytes = 0;
  for (const { live_bytes } of disk.map.live()) stored_bytes += live_bytes;
  await ensureRoom(folder, instance_id, stored_bytes);
  await createOverlay({
    folder,
    instance_id,
    size_bytes: disk.size_bytes,
    qemu_img_binary: context.qemu_img_binary,
    ...(owner ? { owner } : {}),
  });
  disk.noteNewOverlay();
}

export function recoveredFrom(
  generation: number,
  boot: 'this one' | 'the next one',
  { otherwise }: Pick<OverlayVerdict, 'otherwise'>,
): Reason {
  const from =
    generation === 0
      ? 'the image, because nothing had been saved'
      : `generation ${generation}, the last saved one`;
  const message = `The last boot ended without saving its disk; ${boot} continues from ${from}.`;
  const aside = 'Its host keeps a copy of the disk that the database does not know: ask the operator.';
  return { code: 'recovered', message: otherwise === 'set aside' ? `${message} ${aside}` : message };
}

/** Keeps a copy for the operator: the database was set back, or failed over without its last commits, or the host's disk is damaged. */
export async function setAside({
  context,
  instance_id,
  disk,
}: Pick<OverlayOf, 'instance_id' | 'disk'> & {
  readonly context: Pick<HostContext, 'log'> & { readonly paths: Pick<HostContext['paths'], 'overlays'> };
}): Promise<void> {
  const kept = await setAsideOverlay(context.paths.overlays, instance_id);
  const { generation } = disk.head;
  context.log.error({ instance_id, kept, generation }, SET_ASIDE);
}
