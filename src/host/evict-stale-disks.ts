/**
 * Removes files of instances that this host no longer runs: all of them once the instance is deleted, and the overlay
 * once the disk has continued on another host. An instance whose overlay was written in the last 24 hours is left
 * alone.
 *
 * If the database does not know an instance, its files are kept, because the database may be an older or a wrong one.
 * If the database does not know the VM that wrote an overlay, `reportUnknownVm` reports that, and the control plane
 * tells the owner.
 */
import { rmSync } from 'node:fs';
import { open, readFile, rm, stat } from 'node:fs/promises';
import type {
  HeadResponse,
  LineageRequest,
  LineageResponse,
  ReportResponse,
  UnknownVmReport,
} from '../protocol/types.ts';
import type { InstanceId } from '../shared/ids.ts';
import { listOverlays, overlayPaths, readSidecar, removeAside, removeOverlay } from './disk/overlay-files.ts';
import { writeFileDurably } from './durable-file.ts';
import type { HostContext } from './host-context.ts';
import { listVmFolders, makeVmFolder, vmFolder } from './vm/record.ts';

/** As long as orphaned objects are kept: a cache that was used so recently is likely to be used again. */
const HORIZON_MS = 24 * 3_600_000;

/** Instances that a line of the log names. */
const NAMED = 20;

/** What the control plane knows of a disk. */
export interface DisksClient {
  findHead(
    id: InstanceId,
  ): Promise<
    | { readonly outcome: 'head'; readonly head: { readonly commit_id: string } }
    | { readonly outcome: Exclude<HeadResponse['outcome'], 'head'> }
  >;
  lineage(request: LineageRequest): Promise<LineageResponse>;
  reportUnknownVm(report: UnknownVmReport): Promise<ReportResponse>;
}

type Context = Pick<HostContext, 'paths' | 'log'> & { readonly client: DisksClient };

/** An overlay of an existing instance stays as its cache until another host has committed after it. A runner owns its instance's files. */
export async function evictStaleDisks(
  context: Context,
  hasRunner: (id: InstanceId) => boolean,
): Promise<void> {
  const { client, paths, log } = context;
  const unknown: InstanceId[] = [];
  const here = new Set([...(await listOverlays(paths.overlays)), ...(await listVmFolders(paths.vms))]);
  for (const instance_id of here) {
    const { overlay, sidecar } = overlayPaths(paths.overlays, instance_id);
    if (hasRunner(instance_id)) continue;
    await reportUnknownVm(context, instance_id);
    if (await isYoung(overlay)) continue;
    const found = await client.findHead(instance_id);
    if (found.outcome === 'unknown') unknown.push(instance_id);
    if (found.outcome === 'deleted') {
      await removeOverlay(paths.overlays, instance_id);
      await removeAside(paths.overlays, instance_id);
      await rm(vmFolder(paths.vms, instance_id).folder, { recursive: true, force: true });
      log.info({ instance_id }, 'the files of a deleted instance were removed');
    }
    if (found.outcome === 'unknown' || found.outcome === 'deleted') continue;
    const worth = await readSidecar(paths.overlays, instance_id);
    if (typeof worth === 'string') continue;
    if (found.outcome === 'head' && worth.commit_id === found.head.commit_id) continue;
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
  if (unknown.length > 0)
    log.warn(
      { instances: unknown.length, some: unknown.slice(0, NAMED) },
      'the database does not know instances that this host has files of; they are kept. Is it the right database, and is it of an earlier time? If nobody needs the files, remove them from the data folder',
    );
}

async function isYoung(path: string): Promise<boolean> {
  const found = await stat(path).catch(() => null);
  return found !== null && Date.now() - found.mtimeMs < HORIZON_MS;
}

/** Reports the VM of an overlay that this host no longer runs, until the control plane has told of it. */
export async function reportUnknownVm(
  { client, paths, log }: Context,
  instance_id: InstanceId,
): Promise<void> {
  const sidecar = await readSidecar(paths.overlays, instance_id);
  if (typeof sidecar === 'string') return;
  const { vm_id } = sidecar;
  const folder = vmFolder(paths.vms, instance_id);
  if ((await readFile(folder.unknown_vm, 'utf8').catch(() => null)) === vm_id) return;
  const { outcome } = await client.reportUnknownVm({ instance_id, vm_id });
  if (outcome !== 'accepted') return;
  log.error({ instance_id, vm_id }, 'the database does not know the VM of an overlay; the overlay is kept');
  await makeVmFolder(folder);
  await writeFileDurably(folder.unknown_vm, vm_id);
}
