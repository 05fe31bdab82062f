/** What is left on this host of instances that were deleted while it was away: nobody will assign them any more. */
import { readdir, rm, stat } from 'node:fs/promises';
import type { InstanceId } from '../lib/ids.ts';
import { isId } from '../lib/ids.ts';
import type { HostContext } from './host-context.ts';
import { listVmFolders, vmFolder } from './runner/record.ts';
import { overlayPaths, removeOverlay } from './vm/overlay.ts';

/** As long as objects of no disk stay: a control plane that was given the wrong database is noticed by then. */
const HORIZON_MS = 24 * 3_600_000;

/** Overlays of instances that there are stay: they are their cache. `isLookedAfter` are a runner's to remove. */
export async function removeForgotten(
  { client, paths, log }: Pick<HostContext, 'client' | 'paths' | 'log'>,
  isLookedAfter: (id: InstanceId) => boolean,
): Promise<void> {
  const overlays = (await readdir(paths.overlays)).map((name) => name.slice(0, name.indexOf('.')));
  const here = new Set([
    ...overlays.filter((name) => isId('inst', name)),
    ...(await listVmFolders(paths.vms)),
  ]);
  for (const instance_id of here as Set<InstanceId>) {
    if (isLookedAfter(instance_id) || (await client.head(instance_id)) !== null) continue;
    if (await isYoung(overlayPaths(paths.overlays, instance_id).overlay)) continue;
    await removeOverlay(paths.overlays, instance_id);
    await rm(vmFolder(paths.vms, instance_id).folder, { recursive: true, force: true });
    log.info({ instance_id }, 'what was left of a deleted instance is removed');
  }
}

async function isYoung(path: string): Promise<boolean> {
  const found = await stat(path).catch(() => null);
  return found !== null && Date.now() - found.mtimeMs < HORIZON_MS;
}
