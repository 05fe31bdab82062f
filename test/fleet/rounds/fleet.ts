/**
 * The fleet that rounds of faults strike: each machine in namespaces of its own (`machine.ts`), and PostgreSQL in its cluster's
 * (`patroni.ts`), all on one network that only this process sees.
 *
 *     this process (.2) ─ switch ─ control-1, -2 (.71, .72), front-1, -2 (.91, .92), rack-1 to -3 (.81 to .83), store (.61)
 *                            └─ bridge of PostgreSQL ─ p1, p2, p3 (.11 to .13)
 *
 * This process must have a network namespace of its own (`unshare --net`): it is on that network too.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdirSync, rmSync, writeFileSync } from 'node:fs';
import { networkInterfaces } from 'node:os';
import { join } from 'node:path';
import { ip } from '../../support/egress-outside.ts';
import { endIfInterrupted } from '../../support/interrupted.ts';
import { type Machine, MachineNetwork } from '../../support/machine.ts';
import { PatroniCluster } from '../../support/patroni.ts';
import { RestClient } from '../../support/rest-client.ts';
import { bucketSettings, S3Server } from '../../support/s3-server.ts';
import { keepTemplates, linkTemplates } from '../../support/seeds.ts';
import { until, untilWorks } from '../../support/waiting.ts';
import { clockEnv, setClock } from './clock.ts';
import { KeptProcess } from './kept-process.ts';
import type { ObservedHost } from './observer.ts';

const PROJECT = join(import.meta.dirname, '..', '..', '..');
const MAIN = join(PROJECT, 'src', 'main.ts');
const CLI = join(PROJECT, 'src', 'cli', 'main.ts');
const STORE_PROXY = join(import.meta.dirname, 'store-proxy.ts');
const NET = '10.77.0';
const NUMBERS = {
  ...{ 'control-1': 71, 'control-2': 72, 'rack-1': 81, 'rack-2': 82, 'rack-3': 83 },
  ...{ 'front-1': 91, 'front-2': 92, store: 61 },
} as const;
export type MachineName = keyof typeof NUMBERS;
export const NAMES = Object.keys(NUMBERS) as MachineName[];
export const CONTROLS = ['control-1', 'control-2'] as const;
const RACKS = ['rack-1', 'rack-2', 'rack-3'] as const;
export const FRONTS = ['front-1', 'front-2'] as const;
/** The store as the fleet knows it (`store-proxy.ts`). */
const STORE_PORT = 9000;
const PASSWORD = 'only for this test';
const READY = { timeout_ms: 240_000, every_ms: 200 };

export function addressOf(name: MachineName): string {
  return `${NET}.${NUMBERS[name]}`;
}
export const POSTGRES_ADDRESSES = [11, 12, 13].map((number) => `${NET}.${number}`);

export class Fleet {
  readonly network: MachineNetwork;
  readonly cluster: PatroniCluster;
  readonly secret_key = randomBytes(32);
  readonly #machines = new Map<MachineName, Machine>();
  readonly #kept = new Map<MachineName, KeptProcess>();
  readonly #lease_s: number;
  #store: S3Server | undefined;
  #store_proxy: ChildProcess | undefined;
  #bucket: Readonly<Record<string, string>> = {};
  #api_key = '';
  #away = () => {};

  private constructor(network: MachineNetwork, cluster: PatroniCluster, lease_s: number) {
    this.network = network;
    this.cluster = cluster;
    this.#lease_s = lease_s;
  }

  static async start(lease_s: number, say: (line: string) => void): Promise<Fleet> {
    assert(
      Object.keys(networkInterfaces()).length === 0,
      'this process needs a network namespace of its own: unshare --net',
    );
    ip('link', 'set', 'lo', 'up');
    const network = await MachineNetwork.open(NET);
    try {
      const cluster = await PatroniCluster.start();
      const fleet = new Fleet(network, cluster, lease_s);
      try {
        say('PostgreSQL runs');
        await fleet.#boot();
        await fleet.#startStore();
        say('the store runs');
        await fleet.#startControlPlanes();
        say('the control planes run');
        for (const name of RACKS) await fleet.#startHost(name);
        for (const name of FRONTS) await fleet.#startIngress(name);
        await fleet.untilUp();
        return fleet;
      } catch (error) {
        await fleet.close();
        throw error;
      }
    } catch (error) {
      await network.close();
      throw error;
    }
  }

  machine(name: MachineName): Machine {
    return this.#machines.get(name) ?? assert.fail(`there is a machine ${name}`);
  }
  process(name: MachineName): KeptProcess {
    return this.#kept.get(name) ?? assert.fail(`${name} has a process`);
  }
  get store(): S3Server {
    return this.#store ?? assert.fail('the store runs');
  }
  get bucket(): Readonly<Record<string, string>> {
    return this.#bucket;
  }
  get api_key(): string {
    return this.#api_key;
  }
  get hosts(): ObservedHost[] {
    return RACKS.map((name) => ({ name, data_dir: `/tmp/${name}`, folder: this.#tmp(name, name) }));
  }

  /** The store answers reads wrongly from now on. Returns what lets it answer rightly again. */
  answerWrongly(): () => void {
    this.#store_proxy?.stdin?.write('wrong\n');
    return () => void this.#store_proxy?.stdin?.write('right\n');
  }

  /** A host gets an empty disk, apart from its credential, images and templates. It must be off. */
  replaceDisk(name: string): void {
    const { folder } = this.hosts.find((each) => each.name === name) ?? assert.fail(`${name} is a host`);
    for (const part of ['vms', 'overlays', 'run'])
      rmSync(join(folder, part), { recursive: true, force: true });
  }

  /** A command of the operator, with the settings of a control plane, as the documents say. */
  operator(at: (typeof CONTROLS)[number], ...args: string[]): Promise<string> {
    return this.machine(at).run(process.execPath, [CLI, ...args], {
      env: { ...this.#controlPlane(at), NODE_COMPILE_CACHE: '/tmp/compiled' },
    });
  }

  /** Waits until each host reports, and PostgreSQL has all of its nodes. */
  async untilUp(): Promise<void> {
    await this.cluster.untilHealthy();
    const fresh = `select count(*) from hosts where last_seen_at > now() - interval '20 s' and lost_at is null`;
    const all = () => this.cluster.query(fresh)[0]?.[0] === String(RACKS.length);
    await untilWorks('each host reports', async () => assert(all()), READY);
  }

  setClock(name: MachineName, seconds: number): void {
    setClock(this.#tmp(name, 'clock'), seconds);
  }

  async close(): Promise<void> {
    for (const kept of this.#kept.values()) kept.hold();
    const [host] = this.hosts;
    if (host) await keepTemplates({ templates: join(host.folder, 'templates') }).catch(() => undefined);
    for (const machine of this.#machines.values()) if (machine.name !== 'store') await machine.powerOff();
    this.#away();
    this.#store_proxy?.kill('SIGKILL');
    await this.#store?.close();
    await this.cluster.close();
    await this.network.close();
  }

  /** A path below a machine's /tmp, as seen from here. */
  #tmp(name: MachineName, path: string): string {
    return join(this.network.folder, name, 'tmp', path);
  }

  async #boot(): Promise<void> {
    for (const name of NAMES) {
      this.#machines.set(name, await this.network.machine(name, NUMBERS[name]));
      this.setClock(name, 0);
    }
    const to = (name: string, ...where: string[]) =>
      this.network.run(
        'ip',
        'link',
        'add',
        `to-${name}`,
        'type',
        'veth',
        'peer',
        'name',
        'to-fleet',
        'netns',
        ...where,
      );
    to('db', this.cluster.bridge);
    to('lab', String(process.pid));
    for (const name of ['db', 'lab'])
      this.network.run('ip', 'link', 'set', `to-${name}`, 'master', 'br0', 'up');
    ip('-n', this.cluster.bridge, 'link', 'set', 'to-fleet', 'master', 'br0', 'up');
    ip('address', 'add', `${NET}.2/24`, 'dev', 'to-fleet');
    ip('link', 'set', 'to-fleet', 'up');
  }

  async #startStore(): Promise<void> {
    const machine = this.machine('store');
    machine.spawn('network', 'sleep', ['infinity']);
    const pid = await until('it has a process', () => machine.pids()[0]);
    const enter = ['nsenter', `--net=/proc/${pid}/ns/net`, '--'];
    const address = addressOf('store');
    const store = await S3Server.start({ enter, address });
    this.#store = store;
    this.#away = endIfInterrupted(() => store.close());
    const [nsenter = '', ...words] = enter;
    const args = [...words, process.execPath, STORE_PROXY, address, String(STORE_PORT), String(store.port)];
    const proxy = spawn(nsenter, args, { stdio: ['pipe', 'pipe', 'inherit'] });
    this.#store_proxy = proxy;
    await once(proxy.stdout, 'data');
    this.#bucket = bucketSettings(await store.bucket(`http://${address}:${STORE_PORT}`));
  }

  #controlPlane(name: (typeof CONTROLS)[number]): Record<string, string> {
    const address = addressOf(name);
    return {
      ...this.#bucket,
      DATABASE_URL: this.cluster.url,
      BERTH_DATA_DIR: `/tmp/${name}`,
      BERTH_LISTEN: `${address}:7400`,
      BERTH_HOSTS_LISTEN: `${address}:7500`,
      BERTH_PUBLIC_URL: 'https://berth.example.org',
      BERTH_HOSTS: CONTROLS.map(addressOf).join(),
      BERTH_SECRET_KEY: this.secret_key.toString('hex'),
      BERTH_ADMIN_PASSWORD: PASSWORD,
      BERTH_RATE_LIMITS: 'off',
      BERTH_SSH_PORTS: '22000-22099',
      BERTH_HOST_LEASE_SECONDS: String(this.#lease_s),
    };
  }

  #serve(name: MachineName, args: readonly string[], env: Record<string, string>): void {
    const kept = new KeptProcess(() =>
      this.machine(name).spawn('berth', process.execPath, [MAIN, ...args], {
        ...env,
        ...clockEnv('/tmp/clock'),
      }),
    );
    this.#kept.set(name, kept);
    kept.start();
  }

  async #startControlPlanes(): Promise<void> {
    await this.operator('control-1', 'migrate');
    for (const name of CONTROLS) this.#serve(name, ['start', 'control-plane'], this.#controlPlane(name));
    for (const name of CONTROLS) {
      const client = new RestClient(this.origin(name));
      const login = async () => {
        await client.login('admin@localhost', PASSWORD);
        await client.takeKey();
      };
      await untilWorks(`${name} answers`, login, READY);
      this.#api_key = client.token;
    }
  }

  origin(name: (typeof CONTROLS)[number]): string {
    return `http://${addressOf(name)}:7400`;
  }

  async #startHost(name: (typeof RACKS)[number]): Promise<void> {
    const token = await this.operator('control-1', 'host', 'add', name, '--cpus', '8', '--memory', '4');
    writeFileSync(this.#tmp(name, 'token'), token, { mode: 0o600 });
    const folder = this.#tmp(name, name);
    mkdirSync(folder, { mode: 0o711 });
    execFileSync('chmod', ['711', folder]);
    await linkTemplates({ templates: join(folder, 'templates') });
    this.#serve(name, ['start', 'host'], {
      BERTH_DATA_DIR: `/tmp/${name}`,
      BERTH_CONTROL_PLANE: `https://${addressOf(name === 'rack-1' ? 'control-1' : 'control-2')}:7500`,
      BERTH_HOST_TOKEN_FILE: '/tmp/token',
      BERTH_ACCEL: 'tcg',
      BERTH_GUEST_NETWORK: 'user',
    });
  }

  async #startIngress(name: (typeof FRONTS)[number]): Promise<void> {
    writeFileSync(this.#tmp(name, 'token'), await this.operator('control-1', 'ingress', 'add', name), {
      mode: 0o600,
    });
    this.#serve(name, ['ingress'], {
      BERTH_DATA_DIR: `/tmp/${name}`,
      BERTH_CONTROL_PLANE: `https://${addressOf(name === 'front-1' ? 'control-1' : 'control-2')}:7500`,
      BERTH_INGRESS_TOKEN_FILE: '/tmp/token',
      BERTH_SSH_LISTEN: '0.0.0.0',
    });
  }
}
