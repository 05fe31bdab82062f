/**
 * Replaces files of a running installation: gives its host an empty disk, or restores its database to an earlier copy.
 * The launcher is stopped (SIGSTOP) meanwhile, so that it starts nothing before the files are there. All processes that
 * do not use these files keep running.
 */
import { execFileSync } from 'node:child_process';
import { readdirSync, rmSync } from 'node:fs';
import { join } from 'node:path';
import {
  findOrphans,
  identityOfProcess,
  isProcessAlive,
  killProcess,
  type ProcessIdentity,
} from '../../src/host/qemu/qemu-process.ts';
import type { Installation } from './installation.ts';
import { childrenOf, killAll, roleProcess } from './processes.ts';
import { until } from './waiting.ts';

async function whileLauncherIsStopped(berth: Installation, work: () => Promise<void>): Promise<void> {
  const launcher = identityOfProcess(berth.launcher_pid);
  if (launcher) killProcess(launcher, 'SIGSTOP');
  try {
    await work();
  } finally {
    if (launcher) killProcess(launcher, 'SIGCONT');
  }
}

async function end(processes: readonly ProcessIdentity[]): Promise<void> {
  killAll(processes, 'SIGKILL');
  await until('they have ended', () => !processes.some(isProcessAlive), { every_ms: 10 });
}

/** The host's agent and VMs end at once, and the next agent finds an empty disk, apart from images and templates. */
export function replaceHostDisk(berth: Installation): Promise<void> {
  return whileLauncherIsStopped(berth, async () => {
    const { vms, templates, overlays } = berth.paths;
    const agent = roleProcess(berth.launcher_pid, 'agent');
    // First the agent, which starts VMs.
    await end(agent ? [agent] : []);
    await end([...findOrphans(vms), ...findOrphans(templates)].map(({ identity }) => identity));
    for (const folder of [vms, overlays])
      for (const name of readdirSync(folder)) rmSync(join(folder, name), { recursive: true, force: true });
  });
}

function clusterOf(berth: Installation): string {
  return join(berth.paths.postgres, 'cluster');
}

async function databaseProcesses(berth: Installation): Promise<ProcessIdentity[]> {
  const pid = await berth.postgresPid();
  return [pid, ...childrenOf(pid)].flatMap((each) => identityOfProcess(each) ?? []);
}

/** Copies the database's files at one moment to a folder, as a snapshot of its file system would. */
export async function copyDatabaseFiles(berth: Installation, folder: string): Promise<void> {
  const processes = await databaseProcesses(berth);
  // The postmaster comes first, so no other process begins meanwhile.
  killAll(processes, 'SIGSTOP');
  try {
    rmSync(folder, { recursive: true, force: true });
    execFileSync('cp', ['-a', clusterOf(berth), folder]);
  } finally {
    killAll(processes, 'SIGCONT');
  }
  rmSync(join(folder, 'postmaster.pid'));
}

/** Ends the database, and puts the copy in its place. The launcher starts it. */
export function restoreDatabaseFiles(berth: Installation, folder: string): Promise<void> {
  return whileLauncherIsStopped(berth, async () => {
    await end(await databaseProcesses(berth));
    rmSync(clusterOf(berth), { recursive: true });
    execFileSync('cp', ['-a', folder, clusterOf(berth)]);
  });
}
