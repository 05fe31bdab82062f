/**
 * The server process of one cluster: find it, start it detached, stop it, and bound its log. The server appends to one file,
 * which is rotated at {@link LOG_MAX_BYTES}; one older file is kept.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { copyFile, open, readdir, readFile, readlink, realpath, stat, truncate } from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { errnoOf } from '../shared/errors.ts';
import type { PostgresBinaries } from './postgres-binaries.ts';
import { type ClusterOwner, explainLog, POSTGRES_ENV } from './postgres-cluster.ts';
import { isAlive } from './run-command.ts';

export interface RunningServer {
  readonly pid: number;
  readonly socket_dir: string;
  readonly executable: string;
}

const LOG_MAX_BYTES = 8 * 1024 * 1024;
const FAST_STOP_MS = 20_000;
const IMMEDIATE_STOP_MS = 10_000;
const POLL_MS = 20;

/** For a small machine. Errors of clients are not logged, because statements may hold secrets. */
const SERVER_SETTINGS: Readonly<Record<string, string>> = {
  listen_addresses: '',
  unix_socket_permissions: '0700',
  shared_buffers: '64MB',
  max_connections: '100',
  synchronous_commit: 'on',
  wal_compression: 'on',
  max_wal_size: '512MB',
  log_destination: 'stderr',
  logging_collector: 'off',
  log_min_messages: 'log',
  log_min_error_statement: 'panic',
  log_checkpoints: 'off',
  log_line_prefix: '%m [%p] ',
};

export interface SpawnServerOptions {
  readonly binaries: PostgresBinaries;
  readonly owner: ClusterOwner;
  readonly cluster_dir: string;
  readonly socket_dir: string;
  readonly log_path: string;
  /** On top of those for a small machine. */
  readonly settings?: Readonly<Record<string, string>>;
}

export interface SpawnedServer {
  readonly child: ChildProcess;
  readonly pid: number;
  /** Why it ended, from the log; empty when the log has nothing. */
  failure(): Promise<string>;
}

/** Starts the server in its own session, so that neither our death nor a Ctrl-C ends it. */
export async function spawnServer(options: SpawnServerOptions): Promise<SpawnedServer> {
  const { binaries, owner, cluster_dir, socket_dir, log_path } = options;
  await using log = await open(log_path, 'a', 0o600);
  const log_start = (await log.stat()).size;
  const settings = {
    ...SERVER_SETTINGS,
    ...options.settings,
    unix_socket_directories: quoted(socket_dir),
  };
  const args = Object.entries(settings).flatMap(([name, value]) => ['-c', `${name}=${value}`]);
  const child = spawn(binaries.postgres, ['-D', cluster_dir, ...args], {
    ...owner,
    cwd: '/',
    env: POSTGRES_ENV,
    detached: true,
    stdio: ['ignore', log.fd, log.fd],
  });
  await new Promise<void>((resolve, reject) => {
    child.once('spawn', resolve);
    child.once('error', reject);
  });
  child.unref();
  const failure = async () => explainLog((await readFile(log_path)).subarray(log_start).toString('utf8'));
  return { child, pid: child.pid ?? 0, failure };
}

/** Quotes a folder for a list setting: it may contain commas and spaces. */
function quoted(folder: string): string {
  return `"${folder.replaceAll('"', '""')}"`;
}

/**
 * The running server of this cluster. The pid in `postmaster.pid` may have been reused, so the process's working directory
 * must be the cluster.
 */
export async function runningServer(cluster_dir: string): Promise<RunningServer | undefined> {
  try {
    // Lines: pid, data folder, start time, port, socket folder, …
    const lines = (await readFile(join(cluster_dir, 'postmaster.pid'), 'utf8')).split('\n');
    const pid = Number(lines[0]);
    if (!Number.isSafeInteger(pid) || pid <= 1) return undefined;
    if ((await readlink(`/proc/${pid}/cwd`)) !== (await realpath(cluster_dir))) return undefined;
    const executable = await readlink(`/proc/${pid}/exe`);
    return { pid, socket_dir: lines[4] ?? '', executable };
  } catch (error) {
    if (['ENOENT', 'ESRCH', 'EACCES'].includes(errnoOf(error) ?? '')) return undefined;
    throw error;
  }
}

/**
 * Ends servers whose cluster folder was deleted. Such a server notices within a minute and then unlinks the socket at its path,
 * which may belong to a new server at that time.
 */
export async function endOrphans(cluster_dir: string): Promise<void> {
  const cwd = `${await realpath(cluster_dir)} (deleted)`;
  const pids: number[] = [];
  for (const name of await readdir('/proc')) {
    if (/^\d+$/.test(name) && (await readlink(`/proc/${name}/cwd`).catch(() => '')) === cwd)
      pids.push(Number(name));
  }
  for (const pid of pids) {
    try {
      process.kill(pid, 'SIGQUIT');
    } catch (error) {
      if (errnoOf(error) !== 'ESRCH') throw error;
    }
  }
  const deadline_ms = Date.now() + IMMEDIATE_STOP_MS;
  while (pids.some(isAlive) && Date.now() < deadline_ms) await sleep(POLL_MS);
}

/** SIGINT is PostgreSQL's fast shutdown: it rolls back open transactions and writes everything. SIGQUIT is immediate. */
export async function stopServer(pid: number, child?: ChildProcess): Promise<void> {
  const gone = () => (child ? child.exitCode !== null || child.signalCode !== null : !isAlive(pid));
  for (const [signal, wait_ms] of [
    ['SIGINT', FAST_STOP_MS],
    ['SIGQUIT', IMMEDIATE_STOP_MS],
  ] as const) {
    try {
      if (!gone()) process.kill(pid, signal);
    } catch (error) {
      if (errnoOf(error) !== 'ESRCH') throw error;
    }
    const deadline_ms = Date.now() + wait_ms;
    while (!gone() && Date.now() < deadline_ms) await sleep(POLL_MS);
    if (gone()) return;
  }
  throw new Error(`PostgreSQL (pid ${pid}) does not stop`);
}

/** Rotates a log that is too long to `<log>.1`. The server opened it for appending, so truncation is safe. */
export async function boundLog(log_path: string, max_bytes = LOG_MAX_BYTES): Promise<void> {
  if ((await stat(log_path)).size <= max_bytes) return;
  await copyFile(log_path, `${log_path}.1`);
  await truncate(log_path, 0);
}
