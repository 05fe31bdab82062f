/**
 * Runs a whole installation on this machine, as `npm start` does: launcher, roles, embedded PostgreSQL and VMs, with a
 * new data folder, on free loopback ports. VMs and database outlive their launcher by design. So `dispose` ends every
 * process of the data folder, and removes the folder.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import {
  appendFileSync,
  chmodSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { setTimeout as sleep } from 'node:timers/promises';
import { type Paths, pathsIn } from '../../src/config/paths.ts';
import { connect } from '../../src/control-plane/db/connect.ts';
import { removeGuestNetwork } from '../../src/host/network/guest-network.ts';
import { dataFolderId, removeHostRules } from '../../src/host/network/packet-rules.ts';
import { hostCgroups, removeLimits } from '../../src/host/qemu/confinement.ts';
import {
  findOrphans,
  identityOfProcess,
  isProcessAlive,
  type ProcessIdentity,
  waitForExit,
} from '../../src/host/qemu/qemu-process.ts';
import { readFirstLogin } from '../../src/launcher/data-folder.ts';
import { runningDatabaseUrl, runningServer, stopServer } from '../../src/launcher/embedded-postgres.ts';
import { endIfInterrupted } from './interrupted.ts';
import { type OwnPorts, ownPorts } from './own-ports.ts';
import {
  childrenOf,
  killAll,
  processesOfFolder,
  qemuIdentity,
  ROLES,
  type Role,
  roleProcess,
} from './processes.ts';
import { RestClient } from './rest-client.ts';
import { copyDatabase, keepTemplates, linkTemplates, linkTestImage, listOrNothing } from './seeds.ts';
import { SshClient } from './ssh-client.ts';
import { until } from './waiting.ts';

const PROJECT = join(import.meta.dirname, '..', '..');
const SSH_PORTS = 8;
const READY_MS = 180_000;
/** Roles finish their writes before they end, which takes a while on a busy machine. */
const ROLE_END_MS = 60_000;

/** The reason why guests cannot be booted here, for `skip`; false if they can. */
export const CANNOT_BOOT_GUESTS =
  process.getuid?.() === 0 ? false : 'running VMs as users of their own takes root';

export interface InstallationOptions {
  /** Override the harness's settings. */
  readonly settings?: Readonly<Record<string, string>>;
  /** A program with arguments that runs the launcher, instead of this checkout's. */
  readonly program?: readonly [program: string, ...words: string[]];
  /** Called with the new data folder before the first start, for mounts. Returns the cleanup. */
  readonly prepare?: (data_dir: string) => () => void;
  /** Called with the data folder after it is filled for the tests, before the first start. */
  readonly seeded?: (data_dir: string) => void;
  /** Begins without templates, and does not share those that it makes with other tests. */
  readonly own_templates?: boolean;
  /** The folder of the user's SSH key. Default: the data folder. */
  readonly key_dir?: string;
}

export class Installation {
  readonly data_dir: string;
  readonly paths: Paths;
  readonly origin: string;
  readonly port: number;
  readonly ssh_ports: { readonly first: number; readonly last: number };
  readonly http_port: number;
  /** The administrator's client. The administrator owns everything that the tests create. */
  readonly client: RestClient;
  /** With the key of the administrator's account. */
  ssh: SshClient;
  #settings: Readonly<Record<string, string>>;
  readonly #program: readonly [string, ...string[]];
  readonly #undo: () => void;
  readonly #disposed: () => void;
  readonly #ports: OwnPorts;
  readonly #own_templates: boolean;
  #launcher: { readonly child: ChildProcess; readonly ended: Promise<number | null> } | undefined;
  #output = '';
  #password: string | undefined;
  readonly #own = new Map<string, Buffer>();

  private constructor(options: InstallationOptions, ports: OwnPorts) {
    this.#ports = ports;
    this.data_dir = mkdtempSync(join(tmpdir(), 'bt-'));
    chmodSync(this.data_dir, 0o711);
    this.paths = pathsIn(this.data_dir);
    this.port = ports.first;
    this.origin = `http://127.0.0.1:${this.port}`;
    this.ssh_ports = { first: ports.first + 1, last: ports.first + SSH_PORTS };
    this.http_port = ports.first + SSH_PORTS + 1;
    this.#settings = {
      BERTH_DATA_DIR: this.data_dir,
      BERTH_LISTEN: `127.0.0.1:${this.port}`,
      BERTH_SSH_PORTS: `${this.ssh_ports.first}-${this.ssh_ports.last}`,
      BERTH_HTTP_LISTEN: `127.0.0.1:${this.http_port}`,
      BERTH_RATE_LIMITS: 'off',
      ...options.settings,
    };
    this.#program = options.program ?? [process.execPath, join(PROJECT, 'src', 'main.ts'), 'start'];
    this.client = new RestClient(this.origin);
    this.#undo = options.prepare?.(this.data_dir) ?? (() => undefined);
    this.ssh = new SshClient(options.key_dir ?? this.data_dir, 'admin-key');
    this.#own_templates = options.own_templates === true;
    this.#disposed = endIfInterrupted(() => this.dispose());
  }

  /** Starts a new one, logs its administrator in, and registers an SSH key for the account. */
  static async start(options: InstallationOptions = {}): Promise<Installation> {
    const installation = new Installation(options, await ownPorts(2 + SSH_PORTS));
    try {
      // A program of another checkout creates its own.
      if (options.program === undefined) await copyDatabase(installation.paths);
      await linkTestImage(installation.paths);
      if (options.own_templates !== true) await linkTemplates(installation.paths);
      options.seeded?.(installation.data_dir);
      await installation.start();
      await installation.login();
      await installation.registerKey();
      return installation;
    } catch (error) {
      await installation.dispose();
      throw error;
    }
  }

  /** Everything that launcher and roles have printed so far. */
  get output(): string {
    return this.#output;
  }

  get launcher_pid(): number {
    const pid = this.#launcher?.child.pid;
    assert(pid !== undefined, 'the launcher runs');
    return pid;
  }

  /** The folder with all objects of an instance's disk. */
  objectFolder(instance_id: string): string {
    return join(this.paths.objects, 'disks', instance_id);
  }

  /** Starts the launcher and waits until it says that it is ready. */
  async start(): Promise<void> {
    const from = this.#output.length;
    for (const [name, bytes] of this.#own) writeFileSync(join(this.data_dir, name), bytes, { mode: 0o600 });
    const { child, ended } = this.launch();
    this.#launcher = { child, ended };
    await until(
      'the installation is ready',
      () => {
        assert(child.exitCode === null && child.signalCode === null, this.#output.slice(from));
        return this.#output.slice(from).includes('berth ready at ');
      },
      { timeout_ms: READY_MS },
    );
    this.#password ??= (await readFirstLogin(this.paths))?.password;
  }

  /** Starts a second launcher with the same settings, changed by `settings`. The caller ends it. */
  launch(settings: Readonly<Record<string, string>> = {}): {
    child: ChildProcess;
    ended: Promise<number | null>;
    printed: () => string;
  } {
    const [program, ...words] = this.#program;
    const child = spawn(program, words, {
      cwd: this.data_dir,
      env: { ...inheritedEnvironment(), ...this.#settings, ...settings },
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    let printed = '';
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding('utf8').on('data', (text: string) => {
        printed += text;
        this.#output += text;
        const log = process.env['BERTH_TEST_LOG'];
        if (log !== undefined) appendFileSync(log, text);
      });
    }
    const ended = new Promise<number | null>((resolve) => child.once('exit', (code) => resolve(code)));
    return { child, ended, printed: () => printed };
  }

  async login(): Promise<void> {
    const password = this.#settings['BERTH_ADMIN_PASSWORD'] ?? this.#password;
    assert(password !== undefined, 'the administrator has a password');
    await this.client.login('admin@localhost', password);
  }

  async registerKey(): Promise<void> {
    const key = { name: 'admin-key', public_key: this.ssh.public_key };
    await this.client.expect(201, 'POST', '/v1/me/ssh-keys', key);
  }

  /** Waits until something matching was printed after `from` (an earlier length of `output`). */
  async printed(pattern: RegExp, from = 0, timeout_ms = 120_000): Promise<string> {
    const found = () => pattern.exec(this.#output.slice(from))?.[0];
    return until(`${pattern} is printed`, found, { timeout_ms });
  }

  role(role: Role): ProcessIdentity {
    const found = roleProcess(this.launcher_pid, role);
    assert(found !== undefined, `the ${role} runs`);
    return found;
  }

  /** The process of an instance's VM, as its record names it. */
  qemu(instance_id: string): ProcessIdentity {
    return qemuIdentity(this.data_dir, instance_id);
  }

  async postgresPid(): Promise<number> {
    const server = await runningServer(join(this.paths.postgres, 'cluster'));
    assert(server !== undefined, 'the database runs');
    return server.pid;
  }

  /** Signals a role and waits until that process is gone; the launcher starts another. */
  async kill(role: Role, signal: NodeJS.Signals = 'SIGKILL'): Promise<void> {
    const before = this.role(role);
    killAll([before], signal);
    assert(await waitForExit(before, 20_000), `the ${role} ends at ${signal}`);
  }

  /** Waits until the role runs (again) and the installation says it is ready. */
  async recovered(role: Role): Promise<void> {
    await until(`the ${role} runs again`, () => roleProcess(this.launcher_pid, role));
    await this.ready();
  }

  async ready(): Promise<void> {
    const answers = async () => {
      try {
        return (await fetch(`${this.origin}/readyz`)).status === 200;
      } catch {
        return false;
      }
    };
    await until('readyz is 200', answers, { timeout_ms: READY_MS, every_ms: 50 });
  }

  /** Signals the launcher and waits until it and its roles are gone. The VMs run on. */
  async stop(signal: NodeJS.Signals = 'SIGTERM'): Promise<number | null> {
    if (!this.#launcher) return null;
    const { child, ended } = this.#launcher;
    const roles = ROLES.flatMap((role) => {
      const found = roleProcess(child.pid ?? 0, role);
      return found ? [{ role, found }] : [];
    });
    child.kill(signal);
    const code = await ended;
    for (const { role, found } of roles) {
      assert(await waitForExit(found, ROLE_END_MS), `${role} (${found.pid}) ends after its launcher`);
    }
    this.#launcher = undefined;
    return code;
  }

  async restart(signal: NodeJS.Signals = 'SIGTERM'): Promise<void> {
    await this.stop(signal);
    await this.start();
  }

  /** Deletes an instance's overlay on this host, so that the next start reads from the object store. */
  async removeOverlays(instance_id: string): Promise<void> {
    const names = (await readdir(this.paths.overlays)).filter((name) => name.startsWith(instance_id));
    assert(names.length > 0, `${instance_id} has an overlay`);
    for (const name of names) await rm(join(this.paths.overlays, name));
  }

  /** Changes settings for later starts. */
  set(settings: Readonly<Record<string, string>>): void {
    this.#settings = { ...this.#settings, ...settings };
  }

  /** `bin/berth` with the settings of this installation. */
  cli(...args: string[]): Promise<{ readonly code: number; readonly out: string; readonly err: string }> {
    const env = { ...inheritedEnvironment(), ...this.#settings };
    return new Promise((resolve) => {
      execFile(join(PROJECT, 'bin', 'berth'), args, { env, cwd: this.data_dir }, (error, out, err) =>
        resolve({ code: error === null ? 0 : Number(error.code), out, err }),
      );
    });
  }

  /** Loses the machine: kills every process and empties the data folder. */
  async lose(): Promise<void> {
    await this.stop('SIGKILL');
    await this.#endLeftovers();
    for (const name of readdirSync(this.data_dir)) {
      // The user still has the SSH key.
      if (name.startsWith('admin-key')) this.#own.set(name, readFileSync(join(this.data_dir, name)));
      rmSync(join(this.data_dir, name), { recursive: true, force: true, maxRetries: 5 });
    }
  }

  /** Kills every process at once, also the database and the VMs. The data folder stays. */
  async die(): Promise<void> {
    const database = await this.postgresPid().catch(() => null);
    const backends = database === null ? [] : [database, ...childrenOf(database)];
    const found = backends.flatMap((pid) => identityOfProcess(pid) ?? []);
    this.#launcher?.child.kill('SIGKILL');
    killAll(found, 'SIGKILL');
    killAll(processesOfFolder(this.data_dir), 'SIGKILL');
    await this.stop('SIGKILL');
    await this.#endLeftovers();
    for (const each of found) assert(await waitForExit(each, ROLE_END_MS), `the database's ${each.pid} ends`);
  }

  /** Runs a statement in its database, and returns the rows. */
  async sql(text: string, values: readonly unknown[] = []): Promise<readonly Record<string, unknown>[]> {
    const url = await runningDatabaseUrl(this.paths);
    assert(url !== undefined, 'the database runs');
    const client = await connect(url, { statement_timeout_ms: 5_000 });
    try {
      return (await client.query(text, [...values])).rows;
    } finally {
      await client.end();
    }
  }

  /** Ends everything below the data folder and removes it. Idempotent. */
  async dispose(): Promise<void> {
    try {
      this.#launcher?.child.kill('SIGTERM');
      await Promise.race([this.#launcher?.ended, sleep(20_000, undefined, { ref: false })]);
    } finally {
      this.#launcher?.child.kill('SIGKILL');
      await this.#endLeftovers().finally(() => this.#forget());
    }
  }

  async #forget(): Promise<void> {
    this.#disposed();
    if (!this.#own_templates) await keepTemplates(this.paths);
    this.#undo();
    rmSync(this.data_dir, { recursive: true, force: true, maxRetries: 5 });
    this.#ports.release();
  }

  async #endLeftovers(): Promise<void> {
    killAll(processesOfFolder(this.data_dir), 'SIGKILL');
    for (const { identity } of [...findOrphans(this.paths.vms), ...findOrphans(this.paths.templates)]) {
      killAll([identity], 'SIGCONT');
      killAll([identity], 'SIGKILL');
      await until('a VM has ended', () => !isProcessAlive(identity));
    }
    const server = await runningServer(join(this.paths.postgres, 'cluster')).catch(() => undefined);
    if (server) await stopServer(server.pid);
    for (const name of listOrNothing(this.paths.vms)) {
      // The kernel removes an ended process from its control group a moment later.
      const removed = () => removeLimits(hostCgroups(), name) === null;
      await until('the control groups are gone', removed, { timeout_ms: 3_000 }).catch(() => undefined);
    }
    if (process.getuid?.() === 0) {
      await removeHostRules(dataFolderId(this.data_dir));
      await removeGuestNetwork(this.data_dir);
    }
  }
}

/** The environment without settings of Berth, of a database, of S3 and of traces. */
export function inheritedEnvironment(): Record<string, string | undefined> {
  return Object.fromEntries(
    Object.entries(process.env).filter(
      ([name]) => !/^(BERTH|AWS|OTEL)_/.test(name) && name !== 'DATABASE_URL',
    ),
  );
}
