/**
 * The fencer: a process of its own on each host of a fleet, which outlives agent and launcher as the VMs do, and pauses
 * the VMs when nobody has renewed the lease in time. It knows the lease's file and /proc, and speaks to nobody.
 *
 * It keeps pausing what runs as long as the lease is over, and ends when there is no lease any more.
 */
import { spawn } from 'node:child_process';
import { closeSync, openSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { extname, join } from 'node:path';
import type { Paths } from '../../config/paths.ts';
import { present } from '../../lib/assert.ts';
import { pause } from '../../lib/backoff.ts';
import type { Log } from '../../lib/log.ts';
import { identityOf, isAlive, type ProcessIdentity } from '../vm/process-identity.ts';
import { fenceVms } from './fence.ts';
import { leftMs, readLease } from './lease-file.ts';

/** The longest that a suspended machine that wakes up goes unnoticed. */
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

/** The process that enforces the lease; null when there is none. */
export function runningFencer({ fencer }: Pick<Paths, 'fencer'>): ProcessIdentity | null {
  try {
    const identity = JSON.parse(readFileSync(fencer, 'utf8')) as ProcessIdentity;
    return isAlive(identity) ? identity : null;
  } catch {
    return null;
  }
}

/** Starts `fencer-process.ts`, in a session of its own, with none of our settings and secrets. */
export function startFencer({ data, fencer_log }: Pick<Paths, 'data' | 'fencer_log'>, level: string): void {
  const log = openSync(fencer_log, 'a', 0o600);
  try {
    // As this file is called here: JavaScript in a package.
    const program = join(import.meta.dirname, `fencer-process${extname(import.meta.filename)}`);
    const child = spawn(process.execPath, [program, data, level], {
      cwd: '/',
      env: { BERTH_DATA_DIR: data },
      stdio: ['ignore', 'ignore', log],
      detached: true,
    });
    // That it did not come up is seen by its not being there.
    child.on('error', () => undefined);
    child.unref();
  } finally {
    closeSync(log);
  }
}
