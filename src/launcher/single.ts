/**
 * A data folder belongs to one running launcher. The lock is flock(2) on `run/launcher.lock`: the kernel releases it with the
 * last holder of the open file, so it is never stale and has one winner. Node has no flock, so util-linux's program locks
 * the open file that it inherits, and our descriptor keeps the lock. The file contains the holder's pid, only for messages.
 */
import { spawnSync } from 'node:child_process';
import { closeSync, ftruncateSync, openSync, readFileSync, writeSync } from 'node:fs';
import { createServer } from 'node:net';
import type { Address } from '../config/config.ts';
import { errnoOf, messageOf } from '../shared/errors.ts';
import { pause } from '../shared/retry.ts';
import { isAlive } from './run-command.ts';
import { type Say, StartError } from './start-error.ts';
import { ORPHAN_GRACE_MS } from './supervise.ts';

export interface DataFolderLock {
  /** The roles inherit it: the folder stays locked until the last role of a killed launcher has ended. */
  readonly fd: number;
  /** Idempotent. The end of the process does the same. */
  release(): void;
}

const HELD_ELSEWHERE = 1;
/** By then the roles of a killed launcher have ended. */
const ORPHANS_WAIT_MS = ORPHAN_GRACE_MS + 10_000;

/**
 * Throws {@link StartError} with the holder's pid when another launcher has the lock. When that launcher is dead and only its
 * roles are still ending, waits for them up to `wait_ms`.
 */
export async function lockDataFolder(
  lock_path: string,
  say: Say,
  wait_ms = ORPHANS_WAIT_MS,
): Promise<DataFolderLock> {
  // Other children do not inherit it: Node opens files close-on-exec.
  const fd = openSync(lock_path, 'a+', 0o600);
  try {
    const deadline_ms = Date.now() + wait_ms;
    for (let attempt = 0; !tryLock(fd, lock_path); attempt++) {
      const pid = Number(readFileSync(lock_path, 'utf8').trim());
      if (isAlive(pid)) throw new StartError(`another berth (pid ${pid}) already runs on this data folder`);
      if (Date.now() > deadline_ms) {
        throw new StartError(
          `processes of a killed berth (pid ${pid || 'unknown'}) are still running; try again`,
          1,
        );
      }
      if (attempt === 0) say(`waiting for processes of a killed berth (pid ${pid}) to end`);
      await pause(100);
    }
    ftruncateSync(fd);
    writeSync(fd, `${process.pid}\n`);
  } catch (error) {
    closeSync(fd);
    throw error;
  }
  let held = true;
  return {
    fd,
    release() {
      if (held) closeSync(fd);
      held = false;
    },
  };
}

function tryLock(fd: number, lock_path: string): boolean {
  const flock = spawnSync('flock', ['--exclusive', '--nonblock', '3'], {
    stdio: ['ignore', 'ignore', 'pipe', fd],
    encoding: 'utf8',
  });
  if (flock.error !== undefined) {
    throw new StartError(`flock (Debian package util-linux) cannot be run: ${flock.error.message}`);
  }
  if (flock.status === HELD_ELSEWHERE) return false;
  if (flock.status !== 0) throw new StartError(`${lock_path} cannot be locked: ${flock.stderr.trim()}`);
  return true;
}

/** Binds BERTH_LISTEN for a moment, so that a port in use is one error and not a role that keeps dying. */
export async function checkListenAddress({ host, port }: Address): Promise<void> {
  const server = createServer();
  try {
    await new Promise<void>((resolve, reject) => {
      server.once('error', reject);
      server.listen({ host, port, exclusive: true }, resolve);
    });
  } catch (error) {
    const shown = host.includes(':') ? `[${host}]:${port}` : `${host}:${port}`;
    const why: Record<string, string> = {
      EADDRINUSE: 'another program listens there; set another port by BERTH_LISTEN=127.0.0.1:PORT',
      EADDRNOTAVAIL: 'this machine has no such address',
      EACCES: 'ports below 1024 need root',
      ENOTFOUND: 'there is no such host name',
    };
    throw new StartError(
      `BERTH_LISTEN: cannot listen on ${shown}: ${why[errnoOf(error) ?? ''] ?? messageOf(error)}`,
    );
  }
  await new Promise((resolve) => server.close(resolve));
}
