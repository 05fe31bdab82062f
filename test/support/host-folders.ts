/** A host's folders with an empty instance, for tests without an agent. */
import { mkdir, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { makeVmFolder, vmFolder } from '../../src/host/machine/record.ts';
import { newId } from '../../src/lib/ids.ts';

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
