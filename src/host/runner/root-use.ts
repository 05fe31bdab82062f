import type { FileSystemUse } from '../../agent-api/host-types.ts';
import { rootFileSystemUse } from '../guest/guest-use.ts';
import type { VmRunner } from './vm-runner.ts';

/** It is a process in the guest, which may have much else to do. */
const ROOT_USE_MS = 2_000;

/** How full the guest's root file system is; null when unknown. Never asked of a guest that is being flushed. */
export async function rootUse(runner: VmRunner): Promise<FileSystemUse | null> {
  const machine = runner.machineOf();
  if (!machine || !runner.isQuiet) return null;
  return rootFileSystemUse(machine.agent, { timeout_ms: ROOT_USE_MS }).catch(() => null);
}
