/**
 * Pausing every VM of this host, in any state and under any owner: SIGSTOP to each QEMU of the data folder. It stops the guest's
 * processors, disk and network at once, and loses nothing.
 */
import { existsSync, rmSync, writeFileSync } from 'node:fs';
import type { Paths } from '../../config/paths.ts';
import { isStopped, killProcess } from '../qemu/process-identity.ts';
import { type FoundVm, findOrphans } from '../qemu/qemu-process.ts';

type FencePaths = Pick<Paths, 'vms' | 'fenced'>;

/** Pauses all running VMs and returns them. The mark is written first, so that no pause goes unnoticed. */
export function fenceVms(paths: FencePaths): FoundVm[] {
  const running = findOrphans(paths.vms).filter(({ identity }) => !isStopped(identity));
  if (running.length === 0) return [];
  writeFileSync(paths.fenced, '', { mode: 0o600 });
  return running.filter(({ identity }) => killProcess(identity, 'SIGSTOP'));
}

export function wasFenced(paths: FencePaths): boolean {
  return existsSync(paths.fenced);
}

/**
 * After a renewal: resumes the VMs that are still assigned to this host, and ends the others, which may run elsewhere. Their
 * overlays stay.
 */
export function releaseVms(
  paths: FencePaths,
  isOurs: (vm: FoundVm) => boolean,
): { resumed: FoundVm[]; ended: FoundVm[] } {
  // Before the search: a VM that is paused after it is marked again.
  rmSync(paths.fenced, { force: true });
  const paused = findOrphans(paths.vms).filter(({ identity }) => isStopped(identity));
  const [resumed, ended]: [FoundVm[], FoundVm[]] = [[], []];
  for (const vm of paused) {
    const ours = isOurs(vm);
    killProcess(vm.identity, ours ? 'SIGCONT' : 'SIGKILL');
    (ours ? resumed : ended).push(vm);
  }
  return { resumed, ended };
}
