/**
 * Makes the folders of a host with an empty instance, and the context of the instance's disk, for tests without an
 * agent.
 */
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { pathsIn } from '../../src/config/paths.ts';
import type { DiskStateContext } from '../../src/host/disk/disk-state.ts';
import { makeVmFolder, vmFolder } from '../../src/host/vm/record.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import type { DiskHead, LineageResponse } from '../../src/protocol/types.ts';
import { type InstanceId, newId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';

/** A short path, because paths of sockets are limited. Removed after the test. */
export async function hostFolders(t: TestContext) {
  const root = await mkdtemp(join(tmpdir(), 'bhf-'));
  t.after(() => rm(root, { recursive: true, force: true }));
  const paths = { vms: join(root, 'vms'), overlays: join(root, 'overlays') };
  await mkdir(paths.overlays);
  const instance_id = newId('inst');
  const folder = vmFolder(paths.vms, instance_id);
  await makeVmFolder(folder);
  return { root, paths, instance_id, folder };
}

/** A head without objects. */
export function headOf(
  instance_id: InstanceId,
  change: Pick<DiskHead, 'generation' | 'commit_id' | 'size_bytes'> & Partial<DiskHead>,
): DiskHead {
  return {
    ...{ instance_id, image_version: null, epoch: 2, durable_at: null, layers: [], keys: [] },
    ...{ encryption: false, boot_order: [], ...change },
  };
}

/** What a disk's state needs of a host whose data folder is `root`, and of a database with this head. */
export async function diskContextOf(
  root: string,
  head: DiskHead,
  lineage: LineageResponse = { known: true, continues: true },
): Promise<DiskStateContext> {
  return {
    ...{ paths: pathsIn(root), log: createLog('test', 'silent') },
    store: await FolderStore.open(join(root, 'objects')),
    client: {
      head: async () => head,
      lineage: async () => lineage,
      dataKeys: async () => ({ outcome: 'fenced' }),
      commit: async () => ({ outcome: 'fenced', why: 'a test' }),
    },
    images: { stored: async () => undefined },
  };
}
