/**
 * The fencer: a separate process on each host of a fleet. It outlives agent and launcher, as the VMs do, and pauses the VMs when the
 * lease was not renewed in time. It reads the lease's file and /proc, and talks to no other process.
 *
 * It pauses VMs as long as the lease is over, and exits when there is no lease.
 */
import { spawn } from 'node:child_process';
import { closeSync, openSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { extname, join } from 'node:path';
import type { Paths } from '../../config/paths.ts';
import { present } from '../../shared/assert.ts';
import type { Log } from '../../shared/log.ts';
import { pause } from '../../shared/retry.ts';
import { identityOf, isAlive, type ProcessIdentity } from '../qemu/process-identity.ts';
import { fenceVms } from './fence.ts';
import { leftMs, readLease } from './lease-file.ts';

/** How long a host that wakes from suspend may go unnoticed. */
const LOOK_MS = 1_000;
const WHILE_OVER_MS = 100;

type FencerPaths = Pick<Paths, 'lease' | 'fencer' | 'fenced' | 'vms'>;

export async function runFencer(paths: FencerPaths, log: Log, signal: AbortSignal): Promise<void> {
  writeFileSync(`${paths.fencer}.new`, JSON.stringify(present(identityOf(process.pid), 'ourselves')));
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
    return isAlive(identity) ? identity : null;
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
