/** What is left on this host of instances that were deleted while it was away, or went on elsewhere: nobody will use it any more. */
import { rmSync } from 'node:fs';
import { open, readdir, rm, stat } from 'node:fs/promises';
import { DiskElsewhere } from '../agent-api/client.ts';
import type { InstanceId } from '../lib/ids.ts';
import { isId } from '../lib/ids.ts';
import type { HostContext } from './host-context.ts';
import { listVmFolders, vmFolder } from './machine/record.ts';
import { overlayPaths, removeAside, removeOverlay } from './vm/overlay.ts';
import { readSidecar } from './vm/sidecar.ts';

/** As long as objects of no disk stay: a control plane that was given the wrong database is noticed by then. */
const HORIZON_MS = 24 * 3_600_000;

/** Overlays of instances that there are stay, as their cache, until the disk has gone on elsewhere. `hasRunner` are a runner's to remove. */
export async function evictStaleDisks(
  { client, paths, log }: Pick<HostContext, 'client' | 'paths' | 'log'>,
  hasRunner: (id: InstanceId) => boolean,
): Promise<void> {
  const overlays = (await readdir(paths.overlays)).map((name) => name.slice(0, name.indexOf('.')));
  const here = new Set([
    ...overlays.filter((name) => isId('inst', name)),
    ...(await listVmFolders(paths.vms)),
  ]);
  for (const instance_id of here as Set<InstanceId>) {
    const { overlay, sidecar } = overlayPaths(paths.overlays, instance_id);
    if (hasRunner(instance_id) || (await isYoung(overlay))) continue;
    const head = await client.head(instance_id).catch((error: unknown) => {
      if (error instanceof DiskElsewhere) return 'elsewhere' as const;
      throw error;
    });
    if (head === null) {
      await removeOverlay(paths.overlays, instance_id);
      await removeAside(paths.overlays, instance_id);
      await rm(vmFolder(paths.vms, instance_id).folder, { recursive: true, force: true });
      log.info({ instance_id }, 'what was left of a deleted instance is removed');
      continue;
    }
    const worth = await readSidecar(paths.overlays, instance_id);
    if (typeof worth === 'string') continue;
    if (head !== 'elsewhere' && worth.commit_id === head.commit_id) continue;
    const { vm_id, generation, commit_id } = worth;
    const { known, continues } = await client.lineage({ instance_id, vm_id, generation, commit_id });
    if (continues || !known) continue;
    // While it is open its removal takes no time, so no start comes in between; the closing gives back its room.
    await using _held = await open(overlay).catch(() => null);
    if (hasRunner(instance_id)) continue;
    rmSync(sidecar, { force: true });
    rmSync(overlay, { force: true });
    log.info({ instance_id }, 'an overlay that its disk has overtaken is removed');
  }
}

async function isYoung(path: string): Promise<boolean> {
  const found = await stat(path).catch(() => null);
  return found !== null && Date.now() - found.mtimeMs < HORIZON_MS;
}
