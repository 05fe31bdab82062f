/**
 * A data folder belongs to one running launcher. The lock is flock(2) on `run/launcher.lock`: the kernel drops it with
 * the last holder of the open file, however that ends, so there is no stale lock, and two contenders can't both win
 * (a socket file as the lock can't say that: whoever removes a stale one may remove a fresh one). Node has no flock;
 * the program of util-linux locks the open file it inherits from us, and our descriptor keeps the lock.
 * The file's content, the holder's pid, serves the message only.
 */
import { spawnSync } from 'node:child_process';
import { closeSync, ftruncateSync, openSync, readFileSync, writeSync } from 'node:fs';
import { createServer } from 'node:net';
import type { Address } from '../config/config.ts';
import { pause } from '../lib/backoff.ts';
import { errnoOf, messageOf } from '../lib/errors.ts';
import { isAlive } from './process-life.ts';
import { type Say, StartError } from './start-error.ts';
import { ORPHAN_GRACE_MS } from './supervise.ts';

export interface DataFolderLock {
  /** To be inherited by the roles: while one of a killed launcher still ends, the folder is not free. */
  readonly fd: number;
  /** Idempotent. The end of the process does the same. */
  release(): void;
}

const HELD_ELSEWHERE = 1;
/** By then the roles of a killed launcher have ended, or ended themselves. */
const ORPHANS_WAIT_MS = ORPHAN_GRACE_MS + 10_000;

/**
 * Throws {@link StartError} naming the holder when another launcher has it. When the launcher itself is gone and only
 * its roles are still ending, waits for them; if they take longer than `wait_ms`, another try may help (exit code 1).
 */
export async function lockDataFolder(
  lock_path: string,
  say: Say,
  wait_ms = ORPHANS_WAIT_MS,
): Promise<DataFolderLock> {
  // Not inherited by other children: node opens everything close-on-exec.
  const fd = openSync(lock_path, 'a+', 0o600);
  try {
    const deadline_ms = Date.now() + wait_ms;
    for (let attempt = 0; !tryLock(fd, lock_path); attempt++) {
      const pid = Number(readFileSync(lock_path, 'utf8').trim());
      if (isAlive(pid)) throw new StartError(`another berth (pid ${pid}) already runs on this data folder`);
      if (Date.now() > deadline_ms) {
        throw new StartError(`what a killed berth (pid ${pid || 'unknown'}) has left does not end`, 1);
      }
      if (attempt === 0) say(`waiting for what a killed berth (pid ${pid}) has left to end`);
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
    throw new StartError(`flock (Debian package util-linux) can't be run: ${flock.error.message}`);
  }
  if (flock.status === HELD_ELSEWHERE) return false;
  if (flock.status !== 0) throw new StartError(`${lock_path} can't be locked: ${flock.stderr.trim()}`);
  return true;
}

/** Binds and lets go of BERTH_LISTEN, so that a port in use is one line and not a role that dies again and again. */
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
      EADDRINUSE: 'another program listens there; BERTH_LISTEN=127.0.0.1:PORT takes another port',
      EADDRNOTAVAIL: 'this machine has no such address',
      EACCES: 'ports below 1024 need root',
      ENOTFOUND: 'there is no such host name',
    };
    throw new StartError(
      `BERTH_LISTEN: can't listen on ${shown}: ${why[errnoOf(error) ?? ''] ?? messageOf(error)}`,
    );
  }
  await new Promise((resolve) => server.close(resolve));
}
