/**
 * Starts a separate installation of Berth for the benchmarks, as `npm start` does, with its own data folder. VMs and
 * database outlive the launcher by design. So `Installation` kills every process of its data folder at the end.
 */
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { closeSync, existsSync, openSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { promisify } from 'node:util';
import { type Env, readEnv } from '../src/config/env.ts';
import { pathsIn } from '../src/config/paths.ts';
import { removeGuestNetwork } from '../src/host/network/guest-network.ts';
import { dataFolderId, removeHostRules } from '../src/host/network/packet-rules.ts';
import { hostCgroups, removeLimits } from '../src/host/qemu/confinement.ts';
import type { Accelerator } from '../src/host/qemu/qemu-command.ts';
import {
  commandLineOf,
  findOrphans,
  freeLoopbackPort,
  identityOfProcess,
  killProcess,
  waitForExit,
} from '../src/host/qemu/qemu-process.ts';
import { backoffMs, pause } from '../src/shared/retry.ts';
import { Api, unlogged } from './api.ts';

const ADMIN = { email: 'bench@localhost', password: 'only-for-this-benchmark' };
/** Differs from the default range, the second installation's in CONTRIBUTING.md, and the kernel's ephemeral ports. */
const SSH_PORTS = '25000-25999';
const READY_MS = 180_000;
const STOP_MS = 40_000;

export interface InstallationOptions {
  readonly project_dir: string;
  /** Does not exist yet. */
  readonly data_dir: string;
  readonly log_path: string;
  readonly accel: string;
  readonly signal: AbortSignal;
  /** Override the benchmarks' settings. A second installation needs other BERTH_SSH_PORTS. */
  readonly settings?: Readonly<Record<string, string>>;
}

export class Installation {
  readonly data_dir: string;
  readonly log_path: string;
  /** As the agent logs it: `tcg (software emulation: …)`. */
  accelerator = 'unknown';
  #api: Api | undefined;
  readonly #launcher: ChildProcess;
  readonly #options: InstallationOptions;

  private constructor(options: InstallationOptions, launcher: ChildProcess) {
    this.data_dir = options.data_dir;
    this.log_path = options.log_path;
    this.#options = options;
    this.#launcher = launcher;
  }

  /** Resolves when it is ready and the administrator is logged in. A failure leaves no process. */
  static async start(options: InstallationOptions): Promise<Installation> {
    // The kernel chooses a port outside of SSH_PORTS.
    const port = await freeLoopbackPort();
    const log_fd = openSync(options.log_path, 'a', 0o600);
    const launcher = spawn(process.execPath, [join(options.project_dir, 'src', 'main.ts'), 'start'], {
      cwd: options.project_dir,
      env: {
        ...withoutSettings(readEnv()),
        BERTH_DATA_DIR: options.data_dir,
        BERTH_LISTEN: `127.0.0.1:${port}`,
        BERTH_SSH_PORTS: SSH_PORTS,
        BERTH_HTTP_LISTEN: `127.0.0.1:${await freeLoopbackPort()}`,
        BERTH_ADMIN_EMAIL: ADMIN.email,
        BERTH_ADMIN_PASSWORD: ADMIN.password,
        BERTH_ACCEL: options.accel,
        // A benchmark exceeds the rate limit of a principal.
        BERTH_RATE_LIMITS: 'principal=1000000,address=1000000',
        ...options.settings,
      },
      stdio: ['ignore', 'pipe', log_fd],
      // Not in the terminal's process group: only this process gets Ctrl-C, and it ends the launcher in order.
      detached: true,
    });
    closeSync(log_fd);
    const installation = new Installation(options, launcher);
    try {
      const url = await installation.#ready();
      installation.#api = await Api.login(url, ADMIN, options.signal);
      return installation;
    } catch (error) {
      await installation.end();
      throw error;
    }
  }

  /** Runs `bin/berth` as the operator. @throws when it fails */
  async berth(...args: string[]): Promise<void> {
    const { project_dir, data_dir, signal } = this.#options;
    const env = { ...withoutSettings(readEnv()), BERTH_DATA_DIR: data_dir };
    await promisify(execFile)(join(project_dir, 'bin', 'berth'), args, { env, signal });
  }

  get accel(): Accelerator {
    return this.accelerator.startsWith('kvm') ? 'kvm' : 'tcg';
  }

  /** Of the embedded PostgreSQL's first process. */
  get postgres_pid(): number {
    const pid_file = join(this.data_dir, 'postgres', 'cluster', 'postmaster.pid');
    return Number(readFileSync(pid_file, 'utf8').split('\n')[0]);
  }

  /** The pid of the role's process. @throws when it does not run */
  pidOf(role: 'control-plane' | 'agent' | 'ingress'): number {
    const launcher = this.#launcher.pid;
    for (const pid of readFileSync(`/proc/${launcher}/task/${launcher}/children`, 'latin1')
      .trim()
      .split(' ')) {
      if (commandLineOf(Number(pid)).at(-1) === role) return Number(pid);
    }
    throw new Error(`the role ${role} does not run`);
  }

  get api(): Api {
    return this.#api ?? unlogged();
  }

  #ready(): Promise<string> {
    const { signal, log_path } = this.#options;
    const { promise, resolve, reject } = Promise.withResolvers<string>();
    const failed = (why: string) => reject(new Error(`Berth did not start: ${why}\n${tailOf(log_path)}`));
    const stdout = this.#launcher.stdout;
    if (stdout) {
      createInterface({ input: stdout }).on('line', (line) => {
        const accelerator = /accelerator: (.*)$/.exec(line)?.[1];
        if (accelerator) this.accelerator = accelerator;
        const url = /^berth ready at (\S+)$/.exec(line)?.[1];
        if (url) resolve(url);
      });
    }
    const timer = setTimeout(() => failed(`not ready after ${READY_MS / 1000} s`), READY_MS);
    const aborted = () => reject(signal.reason);
    signal.addEventListener('abort', aborted, { once: true });
    this.#launcher.once('error', (error) => failed(error.message));
    this.#launcher.once('exit', (code, killed) => failed(`it ended (${killed ?? `exit code ${code}`})`));
    return promise.finally(() => {
      clearTimeout(timer);
      signal.removeEventListener('abort', aborted);
    });
  }

  /** Ends every process of this installation, and leaves only its folder. Cannot be aborted. */
  async end(): Promise<void> {
    const paths = pathsIn(this.data_dir);
    const { pid } = this.#launcher;
    const launcher = pid === undefined ? null : identityOfProcess(pid);
    if (launcher) {
      killProcess(launcher, 'SIGTERM');
      if (!(await waitForExit(launcher, STOP_MS))) {
        killProcess(launcher, 'SIGKILL');
        // Its roles end by themselves after the launcher.
        await pause(5_000);
      }
    }
    for (const { identity } of [...findOrphans(paths.vms), ...findOrphans(paths.templates)]) {
      killProcess(identity, 'SIGKILL');
      await waitForExit(identity, 10_000);
    }
    await removeControlGroups(this.#api?.created ?? []);
    await endPostgres(join(paths.postgres, 'cluster'));
    if (process.getuid?.() !== 0) return;
    await removeHostRules(dataFolderId(this.data_dir));
    await removeGuestNetwork(this.data_dir);
  }
}

/** A control group can be removed only a moment after its last process has ended. */
async function removeControlGroups(instance_ids: readonly string[]): Promise<void> {
  const cgroups = hostCgroups();
  for (const instance_id of instance_ids) {
    for (let attempt = 0; attempt < 5 && removeLimits(cgroups, instance_id) !== null; attempt++) {
      await pause(backoffMs(attempt));
    }
  }
}

/** Used only when the launcher could not stop it. */
async function endPostgres(cluster_dir: string): Promise<void> {
  let pid: number;
  try {
    pid = Number(readFileSync(join(cluster_dir, 'postmaster.pid'), 'utf8').split('\n')[0]);
  } catch {
    return;
  }
  const server = identityOfProcess(pid);
  if (!server || !commandLineOf(pid).includes(cluster_dir)) return;
  killProcess(server, 'SIGQUIT');
  await waitForExit(server, 10_000);
}

/** Drops the user's own settings of Berth, which are for another installation. */
function withoutSettings(env: Env): Record<string, string | undefined> {
  return Object.fromEntries(
    Object.entries(env).filter(([name]) => !/^(BERTH_|AWS_|DATABASE_URL$)/.test(name)),
  );
}

function tailOf(path: string): string {
  // The folder may be removed already.
  if (!existsSync(path)) return '';
  return readFileSync(path, 'utf8').trim().split('\n').slice(-15).join('\n');
}
