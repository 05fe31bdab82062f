/** Evicts what instances have left on this host that were deleted while it was away, or whose disk has continued on another host. */
import { rmSync } from 'node:fs';
import { open, readdir, rm, stat } from 'node:fs/promises';
import { DiskElsewhere } from '../agent-api/client.ts';
import type { InstanceId } from '../lib/ids.ts';
import { isId } from '../lib/ids.ts';
import type { HostContext } from './host-context.ts';
import { listVmFolders, vmFolder } from './machine/record.ts';
import { overlayPaths, removeAside, removeOverlay } from './vm/overlay.ts';
import { readSidecar } from './vm/sidecar.ts';

/** As long as orphaned objects are kept, which is enough time to notice that the control plane uses the wrong database. */
const HORIZON_MS = 24 * 3_600_000;

/** An overlay of an existing instance stays as its cache until another host has committed after it. A runner owns its instance's files. */
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
      log.info({ instance_id }, 'the files of a deleted instance were removed');
      continue;
    }
    const worth = await readSidecar(paths.overlays, instance_id);
    if (typeof worth === 'string') continue;
    if (head !== 'elsewhere' && worth.commit_id === head.commit_id) continue;
    const { vm_id, generation, commit_id } = worth;
    const { known, continues } = await client.lineage({ instance_id, vm_id, generation, commit_id });
    if (continues || !known) continue;
    // Removing an open file takes no time, so no start comes in between; closing it frees the room.
    await using _held = await open(overlay).catch(() => null);
    if (hasRunner(instance_id)) continue;
    rmSync(sidecar, { force: true });
    rmSync(overlay, { force: true });
    log.info({ instance_id }, 'a stale overlay was removed');
  }
}

async function isYoung(path: string): Promise<boolean> {
  const found = await stat(path).catch(() => null);
  return found !== null && Date.now() - found.mtimeMs < HORIZON_MS;
}
