/**
 * Finds the processes of an installation, by their parent or their environment, and identifies each by pid and start
 * time.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import {
  allPids,
  commandLineOf,
  identityOfProcess,
  killProcess,
  type ProcessIdentity,
} from '../../src/host/qemu/qemu-process.ts';

export const ROLES = ['control-plane', 'agent', 'ingress'] as const;
export type Role = (typeof ROLES)[number];

function parentOf(pid: number): number | undefined {
  try {
    const text = readFileSync(`/proc/${pid}/stat`, 'latin1');
    return Number(text.slice(text.lastIndexOf(')') + 2).split(' ')[1]);
  } catch {
    return undefined;
  }
}

/** The child processes of a process. */
export function childrenOf(pid: number): number[] {
  return allPids().filter((each) => parentOf(each) === pid);
}

/** The role's process among the launcher's children. */
export function roleProcess(launcher_pid: number, role: Role): ProcessIdentity | undefined {
  for (const pid of allPids()) {
    if (parentOf(pid) !== launcher_pid) continue;
    if (commandLineOf(pid).at(-1) === role) return identityOfProcess(pid) ?? undefined;
  }
  return undefined;
}

/** The orphaned role processes of a data folder, recognised by the folder in their environment. */
export function processesOfFolder(data_dir: string): ProcessIdentity[] {
  return allPids().flatMap((pid) => {
    if (pid === process.pid) return [];
    try {
      const environment = readFileSync(`/proc/${pid}/environ`, 'latin1');
      if (!environment.split('\0').includes(`BERTH_DATA_DIR=${data_dir}`)) return [];
    } catch {
      return [];
    }
    const identity = identityOfProcess(pid);
    return identity ? [identity] : [];
  });
}

export function killAll(identities: readonly ProcessIdentity[], signal: NodeJS.Signals): void {
  for (const identity of identities) killProcess(identity, signal);
}

/** The instance's QEMU, as its record names it. */
export function qemuIdentity(data_dir: string, instance_id: string): ProcessIdentity {
  const record = JSON.parse(readFileSync(join(data_dir, 'vms', instance_id, 'record.json'), 'utf8')) as {
    identity: ProcessIdentity;
  };
  return record.identity;
}
