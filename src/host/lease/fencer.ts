/**
 * The fencer: keeps this host's VMs paused while the host's lease is over, that is, was not renewed in time. It is a
 * process of its own on each host of a fleet, and outlives agent and launcher, as the VMs do. It reads only the lease's
 * file and /proc, and talks to no other process. When there is no lease, it exits.
 *
 * The agent uses parts of this file too: it starts the fencer, writes the lease's file, and pauses and resumes VMs.
 */

import { spawn } from 'node:child_process';
import { closeSync, existsSync, openSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { extname, join } from 'node:path';
import type { Paths } from '../../config/paths.ts';
import { present } from '../../shared/assert.ts';
import { errnoOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { pause } from '../../shared/retry.ts';
import {
  bootId,
  bootMs,
  type FoundVm,
  findOrphans,
  identityOfProcess,
  isProcessAlive,
  isStopped,
  killProcess,
  type ProcessIdentity,
} from '../qemu/qemu-process.ts';

/** How long a host that wakes from suspend may go unnoticed. */
const LOOK_MS = 1_000;
const WHILE_OVER_MS = 100;

type FencerPaths = Pick<Paths, 'lease' | 'fencer' | 'fenced' | 'vms'>;

export async function runFencer(paths: FencerPaths, log: Log, signal: AbortSignal): Promise<void> {
  writeFileSync(`${paths.fencer}.new`, JSON.stringify(present(identityOfProcess(process.pid), 'ourselves')));
  renameSync(`${paths.fencer}.new`, paths.fencer);
  log.info('the fencer watches the lease');
  let told = false;
  while (!signal.aborted) {
    const lease = readLease(paths.lease);
    if (lease === null) break;
    const left_ms = leftMs(lease);
    if (left_ms === 0) {
      const paused = fenceVms(paths).map(({ instance_id }) => instance_id);
      if (!told || paused.length > 0) log.error({ paused }, 'the lease is over: VMs are paused');
    }
    told = left_ms === 0;
    await pause(left_ms === 0 ? WHILE_OVER_MS : Math.min(left_ms, LOOK_MS), signal);
  }
  rmSync(paths.fencer, { force: true });
}

/** The running fencer; null: none. */
export function runningFencer({ fencer }: Pick<Paths, 'fencer'>): ProcessIdentity | null {
  try {
    const identity = JSON.parse(readFileSync(fencer, 'utf8')) as ProcessIdentity;
    return isProcessAlive(identity) ? identity : null;
  } catch {
    return null;
  }
}

/** Starts `fencer-process.ts` in a new session, without our settings and secrets. */
export function startFencer({ data, fencer_log }: Pick<Paths, 'data' | 'fencer_log'>, level: string): void {
  const log = openSync(fencer_log, 'a', 0o600);
  try {
    // The extension of this file: JavaScript in a package.
    const program = join(import.meta.dirname, `fencer-process${extname(import.meta.filename)}`);
    const child = spawn(process.execPath, [program, data, level], {
      cwd: '/',
      env: { BERTH_DATA_DIR: data },
      stdio: ['ignore', 'ignore', log],
      detached: true,
    });
    // The caller checks whether the fencer runs.
    child.on('error', () => undefined);
    child.unref();
  } finally {
    closeSync(log);
  }
}

type FencePaths = Pick<Paths, 'vms' | 'fenced'>;

/**
 * Pauses all running VMs of this host, in any state and under any owner, and returns them: SIGSTOP to each QEMU of the data folder
 * stops the guest's processors, disk and network at once, and loses nothing. The mark is written first, so that no pause goes
 * unnoticed.
 */
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

/**
 * Until when this host may run its VMs, for every process that must know: `run/lease.json`, replaced whole. It needs no fsync: after
 * a power loss no VM runs, and a lease of another boot is over. Without the file there is no lease.
 */
export interface Lease {
  readonly boot_id: string;
  /** On the boot clock. */
  readonly until_ms: number;
  /** The length that was promised to the control plane. */
  readonly lease_ms: number;
}

/** null: there is no lease. An unreadable lease is over. */
export function readLease(path: string): Lease | null {
  try {
    const { boot_id, until_ms, lease_ms } = JSON.parse(readFileSync(path, 'utf8')) as Partial<Lease>;
    const whole = typeof boot_id === 'string' && typeof until_ms === 'number' && typeof lease_ms === 'number';
    return whole ? { boot_id, until_ms, lease_ms } : OVER;
  } catch (error) {
    if (errnoOf(error) === 'ENOENT') return null;
    return OVER;
  }
}

const OVER: Lease = { boot_id: '', until_ms: 0, lease_ms: 0 };

/** The remaining time; 0: it is over. */
export function leftMs({ boot_id, until_ms }: Pick<Lease, 'boot_id' | 'until_ms'>): number {
  return boot_id === bootId() ? Math.max(0, until_ms - bootMs()) : 0;
}

export function writeLease(path: string, until_ms: number, lease_ms: number): void {
  const lease: Lease = { boot_id: bootId(), until_ms, lease_ms };
  writeFileSync(`${path}.new`, JSON.stringify(lease), { mode: 0o600 });
  renameSync(`${path}.new`, path);
}

export function removeLease(path: string): void {
  rmSync(path, { force: true });
}
