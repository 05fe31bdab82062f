/**
 * The program of `npm run dev`: runs control plane, ingress and console of this checkout with a simulated host
 * (`test/simulated-host/`), the embedded PostgreSQL, and a folder as object store. A change below `src/` restarts
 * control plane and ingress. A change below `console/` or `client/src/` builds the console first.
 *
 * Invariant: the program uses only a data folder that it has made itself, which the file `development` marks. So the
 * simulated host never answers for instances of a real one.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { existsSync, readdirSync, watch, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { readEnv } from '../src/config/env.ts';
import { type Paths, pathsIn } from '../src/config/paths.ts';
import {
  checkListenAddress,
  ensureSecrets,
  lockDataFolder,
  makeDataFolder,
  readFirstLogin,
} from '../src/launcher/data-folder.ts';
import { startEmbeddedPostgres } from '../src/launcher/embedded-postgres.ts';
import { clusterExists } from '../src/launcher/postgres-cluster.ts';
import { configOrRefuse } from '../src/launcher/start.ts';
import { refuse, StartError } from '../src/launcher/start-error.ts';
import { aborted } from '../src/launcher/supervise.ts';
import { pause } from '../src/shared/retry.ts';

const PROJECT = join(import.meta.dirname, '..');
/** Beside those of an installation by `npm start`. */
const DEFAULTS = {
  BERTH_DATA_DIR: join(PROJECT, '.cache', 'dev'),
  BERTH_LISTEN: '127.0.0.1:7500',
  BERTH_HTTP_LISTEN: '127.0.0.1:7580',
  BERTH_SSH_PORTS: '26000-26099',
};
const MARK = 'development';
/** As long as a person can see. */
const BOOT_MS = 1_000;
/** Editors write a file in several steps. */
const SETTLED_MS = 100;
const STOP_MS = 10_000;

const SOURCE = /\.(ts|tsx|css|sql|svg|html|json|sh|pl|txt)$/;
const HOST_PROGRAM = 'test/simulated-host/host-program.ts';

const say = (line: string) => void process.stdout.write(`berth dev: ${line}\n`);

/** A program that is started again at each change. One that ends by itself waits for the next. */
class Program {
  readonly #name: string;
  readonly #args: readonly string[];
  readonly #env: NodeJS.ProcessEnv;
  /** What it reads first. */
  readonly #input: string;
  #child: ChildProcess | null = null;

  constructor(name: string, args: readonly string[], env: NodeJS.ProcessEnv, input = '') {
    this.#name = name;
    this.#args = args;
    this.#env = env;
    this.#input = input;
  }

  /** Unless it runs. */
  start(): void {
    if (this.#child) return;
    // Its own session: a Ctrl-C reaches only us. By the channel it notices our end.
    const child = spawn(process.execPath, this.#args, {
      ...{ cwd: PROJECT, env: this.#env, detached: true, stdio: ['pipe', 'inherit', 'inherit', 'ipc'] },
    });
    this.#child = child;
    child.stdin?.on('error', () => undefined).write(this.#input);
    child.once('exit', (code, signal) => {
      if (this.#child !== child) return;
      this.#child = null;
      say(`${this.#name} has ended (${signal ?? `exit code ${code}`}); it starts again at the next change`);
    });
  }

  async stop(): Promise<void> {
    const child = this.#child;
    this.#child = null;
    if (!child || child.exitCode !== null || child.signalCode !== null) return;
    const gone = once(child, 'exit');
    child.stdin?.end();
    child.kill('SIGTERM');
    const timer = setTimeout(() => child.kill('SIGKILL'), STOP_MS);
    await gone;
    clearTimeout(timer);
  }
}

/** @throws StartError for a folder that something else made */
async function ownDataFolder(paths: Paths): Promise<void> {
  const mark = join(paths.data, MARK);
  if (existsSync(paths.data) && readdirSync(paths.data).length > 0 && !existsSync(mark)) {
    throw new StartError(
      `BERTH_DATA_DIR: ${paths.data} was not made by npm run dev, whose host is simulated. Name another folder`,
    );
  }
  await makeDataFolder(paths);
  writeFileSync(mark, 'Made by npm run dev: its host is simulated.\n');
}

async function run(program: string): Promise<void> {
  const child = spawn(process.execPath, [program], { cwd: PROJECT, stdio: 'inherit' });
  await once(child, 'exit');
}

/** The changed paths, relative to the project, in groups. */
function onChange(
  folders: readonly string[],
  signal: AbortSignal,
  changed: (paths: ReadonlySet<string>) => Promise<void>,
): void {
  const waiting = new Set<string>();
  let work = Promise.resolve();
  let timer: NodeJS.Timeout | undefined;
  for (const folder of folders) {
    watch(join(PROJECT, folder), { recursive: true, signal }, (_, name) => {
      if (name === null || !SOURCE.test(name) || /^dist|\.test\.tsx?$/.test(name)) return;
      waiting.add(join(folder, name));
      clearTimeout(timer);
      timer = setTimeout(() => {
        const paths = new Set(waiting);
        waiting.clear();
        work = work.then(() => (signal.aborted ? undefined : changed(paths)));
      }, SETTLED_MS);
    });
  }
}

/** Waits until it is, or until `given_up`. */
async function isReady(url: string, given_up: AbortSignal): Promise<boolean> {
  do {
    const answer = await fetch(`${url}/readyz`).catch(() => null);
    await answer?.body?.cancel();
    if (answer?.ok) return !given_up.aborted;
  } while (await pause(50, given_up));
  return false;
}

/** Under npm one Ctrl-C arrives twice. */
function untilSignal(): AbortSignal {
  const stopping = new AbortController();
  for (const signal of ['SIGTERM', 'SIGINT', 'SIGHUP'] as const) process.on(signal, () => stopping.abort());
  return stopping.signal;
}

async function announce(url: string, paths: Paths): Promise<void> {
  const login = await readFirstLogin(paths);
  say(`web console: ${url.replace('//127.0.0.1', '//localhost')}`);
  if (login) say(`log in there as ${login.email} with the password ${login.password}`);
  say(`from a terminal: BERTH_URL=${url} bin/berth login`);
  say(`VMs are simulated; docs/developing/running.md says what they can do. Data: ${paths.data}`);
  say('a change of the code restarts what it concerns; then reload the page. Ctrl-C ends everything');
}

async function main(): Promise<void> {
  const stopping = untilSignal();
  const env = { ...DEFAULTS, ...readEnv() };
  const config = configOrRefuse(env, process.cwd());
  const paths = pathsIn(config.data_dir);
  await ownDataFolder(paths);
  // Elsewhere there is no flock; the address below is in use then.
  const lock = process.platform === 'linux' ? await lockDataFolder(paths.launcher_lock, say) : null;
  await checkListenAddress(config.listen);
  const has_database = config.database_url === null && (await clusterExists(paths.postgres));
  const { host_token } = await ensureSecrets(paths, config.secret_key, has_database);
  const built = run('console/build.ts');
  const postgres = config.database_url === null ? await startEmbeddedPostgres(paths, { say }) : null;
  await built;
  const database_url = config.database_url ?? postgres?.database_url ?? '';
  const settings = { ...env, DATABASE_URL: database_url, BERTH_DATA_DIR: config.data_dir };
  const control_plane = new Program('the control plane', ['src/main.ts', 'control-plane'], settings);
  const ingress = new Program('the ingress', ['src/main.ts', 'ingress'], settings);
  const host_args = [HOST_PROGRAM, paths.agent_api_socket, `${BOOT_MS}`];
  const host = new Program('the simulated host', host_args, settings, `${host_token}\n\n`);
  const programs = [control_plane, ingress, host];
  for (const each of programs) each.start();
  const url = `http://${config.listen.host}:${config.listen.port}`;
  // A control plane that does not start is waited for until the change that mends it.
  let changing = new AbortController();
  onChange(['src', 'console', 'client/src'], stopping, async (changed) => {
    changing.abort();
    changing = new AbortController();
    const [first = ''] = changed;
    say(`${first}${changed.size > 1 ? ` and ${changed.size - 1} more` : ''} changed`);
    if ([...changed].some((path) => !path.startsWith('src/'))) await run('console/build.ts');
    // The simulated host stays: with it, all VMs would go.
    await Promise.all([control_plane.stop(), ingress.stop()]);
    if (stopping.aborted) return;
    for (const each of programs) each.start();
    void isReady(url, changing.signal).then((ready) => ready && say('ready again; reload the page'));
  });
  if (await isReady(url, AbortSignal.any([stopping, changing.signal])))
    say(`ready after ${process.uptime().toFixed(1)} s`);
  if (!stopping.aborted) await announce(url, paths);
  await aborted(stopping);
  for (const each of programs.toReversed()) await each.stop();
  await postgres?.stop();
  lock?.release();
}

try {
  await main();
  process.exit(0);
} catch (error) {
  if (!(error instanceof StartError)) throw error;
  process.exit(refuse(error));
}
