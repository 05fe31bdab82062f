/**
 * Runs a second host of an installation's fleet on this machine, as a remote one: `start host` with a join token, its
 * own data folder, agent, fencer and VMs. `dispose` ends all of it.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { createHash } from 'node:crypto';
import { once } from 'node:events';
import { chmodSync, existsSync, mkdtempSync, readdirSync, rmdirSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { type Paths, pathsIn } from '../../src/config/paths.ts';
import { runningFencer } from '../../src/host/lease/fencer.ts';
import { hostCgroups } from '../../src/host/qemu/confinement.ts';
import { findOrphans, killProcess, type ProcessIdentity } from '../../src/host/qemu/qemu-process.ts';
import { inheritedEnvironment } from './installation.ts';
import { killAll, processesOfFolder, qemuIdentity, roleProcess } from './processes.ts';
import { linkTestImage } from './seeds.ts';
import { until } from './waiting.ts';

const MAIN = join(import.meta.dirname, '..', '..', 'src', 'main.ts');

export class RemoteHost {
  readonly paths: Paths;
  readonly #env: Readonly<Record<string, string | undefined>>;
  #child: ChildProcess | undefined;
  #output = '';

  private constructor(data_dir: string, env: Readonly<Record<string, string | undefined>>) {
    this.paths = pathsIn(data_dir);
    this.#env = env;
  }

  /** `settings`: the accelerator. */
  static async start(
    control_plane: string,
    token: string,
    settings: Readonly<Record<string, string>>,
    main = MAIN,
  ): Promise<RemoteHost> {
    const data_dir = mkdtempSync(join(tmpdir(), 'bt-rem-'));
    chmodSync(data_dir, 0o711);
    const token_path = join(data_dir, 'token');
    const joined = { BERTH_CONTROL_PLANE: control_plane, BERTH_HOST_TOKEN_FILE: token_path };
    const env = { ...inheritedEnvironment(), BERTH_DATA_DIR: data_dir, ...joined, ...settings };
    const host = new RemoteHost(data_dir, env);
    try {
      await linkTestImage(host.paths);
      writeFileSync(token_path, token, { mode: 0o600 });
      await host.#launch(main);
      return host;
    } catch (error) {
      await host.dispose();
      throw error;
    }
  }

  async #launch(main: string): Promise<void> {
    const child = spawn(process.execPath, [main, 'start', 'host'], {
      cwd: this.paths.data,
      env: this.#env,
      stdio: ['ignore', 'pipe', 'pipe'],
    });
    this.#child = child;
    for (const stream of [child.stdout, child.stderr]) {
      stream.setEncoding('utf8').on('data', (text: string) => {
        this.#output += text;
      });
    }
    const runs = () => {
      assert(child.exitCode === null, this.#output);
      return roleProcess(child.pid ?? 0, 'agent');
    };
    await until('the remote agent runs', runs, { timeout_ms: 120_000 });
  }

  /** As systemd does it: its VMs keep running. */
  async restart(main = MAIN): Promise<void> {
    const child = this.#child;
    assert(child && child.exitCode === null, this.#output);
    const gone = once(child, 'exit');
    child.kill('SIGTERM');
    await gone;
    await this.#launch(main);
  }

  get output(): string {
    return this.#output;
  }
  get agent(): ProcessIdentity {
    const found = roleProcess(this.#child?.pid ?? 0, 'agent');
    assert(found, `the remote agent runs: ${this.#output}`);
    return found;
  }
  get fencer(): ProcessIdentity {
    const found = runningFencer(this.paths);
    assert(found, 'the remote fencer runs');
    return found;
  }
  qemu(instance_id: string): ProcessIdentity {
    return qemuIdentity(this.paths.data, instance_id);
  }

  #removeGroups(): void {
    const mounts = hostCgroups();
    const parent = `berth-${createHash('sha256').update(this.paths.data).digest('hex').slice(0, 12)}`;
    const roots = mounts === null ? [] : mounts.version === 2 ? [mounts.root] : Object.values(mounts.roots);
    for (const root of new Set(roots)) {
      const folder = join(root, parent);
      if (!existsSync(folder)) continue;
      for (const { name } of readdirSync(folder, { withFileTypes: true }).filter((each) =>
        each.isDirectory(),
      )) {
        rmdirSync(join(folder, name));
      }
      rmdirSync(folder);
    }
  }

  async dispose(): Promise<void> {
    this.#child?.kill('SIGKILL');
    for (const { identity } of findOrphans(this.paths.vms)) killProcess(identity, 'SIGKILL');
    killAll(processesOfFolder(this.paths.data), 'SIGKILL');
    await until('all of the remote host has ended', () => {
      killAll(processesOfFolder(this.paths.data), 'SIGKILL');
      return processesOfFolder(this.paths.data).length === 0 && findOrphans(this.paths.vms).length === 0;
    });
    this.#removeGroups();
    rmSync(this.paths.data, { recursive: true, force: true, maxRetries: 5 });
  }
}
