/**
 * The disasters that strike an installation in a random round (crash-rounds.ts): a power cut, and kills of processes.
 * Each has its recovery.
 */
import assert from 'node:assert/strict';
import { killProcess, waitForExit } from '../../src/host/qemu/qemu-process.ts';
import type { CutDisk } from './cut-disk.ts';
import type { GuestInstance } from './guest-instance.ts';
import type { Installation } from './installation.ts';

export interface Disaster {
  readonly name: string;
  /** Strikes. `random` returns a number from 0 to 1 that follows from the seed. Returns details for the round's description. */
  strike(random: () => number): Promise<string>;
  /** Resolves when everything but the VMs runs again. */
  recover(): Promise<void>;
}

const EXIT_MS = 60_000;

export function powerCut(berth: Installation, disk: CutDisk): Disaster {
  return {
    name: 'power cut',
    strike: async (random) => {
      const report = await disk.cut(Math.floor(random() * 2 ** 31));
      await berth.die();
      return report;
    },
    recover: async () => {
      disk.comeBack();
      await berth.start();
    },
  };
}

/** Kills: of each process, of several together, and of all. */
export function kills(berth: Installation, guest: GuestInstance): readonly Disaster[] {
  const killQemu = async () => {
    const { qemu } = guest;
    killProcess(qemu, 'SIGKILL');
    assert(await waitForExit(qemu, EXIT_MS), 'QEMU ends');
  };
  // The process may be missing because it is restarting.
  const tried = (work: () => Promise<unknown>) => work().catch(() => undefined);
  const of: Readonly<Record<string, () => Promise<unknown>>> = {
    qemu: () => tried(killQemu),
    agent: () => tried(() => berth.kill('agent')),
    'control plane': () => tried(() => berth.kill('control-plane')),
    database: () => tried(async () => process.kill(await berth.postgresPid(), 'SIGKILL')),
    'qemu and agent': () => Promise.all([tried(killQemu), tried(() => berth.kill('agent'))]),
    'agent and control plane': () =>
      Promise.all([tried(() => berth.kill('agent')), tried(() => berth.kill('control-plane'))]),
    launcher: () => berth.restart('SIGKILL'),
    everything: async () => {
      await berth.die();
      await berth.start();
    },
  };
  return Object.entries(of).map(([name, kill]) => ({
    name: `${name} killed`,
    strike: async () => {
      await kill();
      return 'by SIGKILL';
    },
    recover: () => berth.ready(),
  }));
}
