import type { FileSystemUse } from '../../protocol/host-types.ts';
import { rootFileSystemUse } from '../guest/guest-use.ts';
import type { VmRunner } from './vm-runner.ts';

/** It starts a process in the guest, which may be busy. */
const ROOT_USE_MS = 2_000;

/** How full the guest's root file system is; null: unknown. A guest that is being flushed is not asked. */
export async function rootUse(runner: VmRunner): Promise<FileSystemUse | null> {
  const machine = runner.machineOf();
  if (!machine || !runner.isQuiet) return null;
  return rootFileSystemUse(machine.agent, { timeout_ms: ROOT_USE_MS }).catch(() => null);
}
