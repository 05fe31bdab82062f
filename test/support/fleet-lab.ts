/**
 * Runs a fleet on loopback: control planes on one database and one bucket, each in a process that a test may kill, and
 * hosts without VMs that join them. Also a load balancer of TCP connections.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdtempSync, rmSync } from 'node:fs';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { pathsIn } from '../../src/config/paths.ts';
import { useJoinToken } from '../../src/control-plane/fleet/credential-store.ts';
import { insertRemoteHost } from '../../src/control-plane/fleet/fleet-store.ts';
import { hostsCertificate } from '../../src/control-plane/fleet/hosts-certificate.ts';
import { findRootKey } from '../../src/control-plane/fleet/root-key.ts';
import { hashToken } from '../../src/control-plane/identity/tokens.ts';
import { makeDataFolder } from '../../src/launcher/data-folder.ts';
import { ControlPlaneClient } from '../../src/protocol/client.ts';
import { composeJoinToken, parseJoinToken } from '../../src/protocol/protocol.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { SimulatedHost, type SimulatedHostOptions } from '../simulated-host/simulated-host.ts';
import { startDatabase, type TestDatabase } from './database.ts';
import { endIfInterrupted } from './interrupted.ts';
import { ownPort } from './own-ports.ts';
import { type InstanceBody, RestClient, type VmBody } from './rest-client.ts';
import { bucketSettings, S3Server } from './s3-server.ts';
import { until, untilWorks } from './waiting.ts';

const MAIN = join(import.meta.dirname, '..', '..', 'src', 'main.ts');
const PASSWORD = 'only for this test';
const READY = { timeout_ms: 120_000, every_ms: 100 };

export interface ControlPlaneProcess {
  readonly port: number;
  readonly hosts_port: number;
  readonly client: RestClient;
  readonly output: () => string;
  kill(signal?: NodeJS.Signals): Promise<void>;
}

export class FleetLab {
  readonly folder = mkdtempSync(join(tmpdir(), 'bt-'));
  /** The program of what is started next. */
  main = MAIN;
  readonly secret_key = randomBytes(32);
  readonly database: TestDatabase;
  readonly #store: S3Server;
  /** The settings of the object store. */
  readonly bucket: Readonly<Record<string, string>>;
  readonly #children: ChildProcess[] = [];
  readonly #hosts: SimulatedHost[] = [];
  readonly #disposed: () => void;
  #started = 0;

  private constructor(database: TestDatabase, store: S3Server, bucket: Record<string, string>) {
    this.database = database;
    this.#store = store;
    this.bucket = bucket;
    this.#disposed = endIfInterrupted(() => this.dispose());
  }

  static async start(): Promise<FleetLab> {
    const database = await startDatabase();
    const store = await S3Server.start();
    return new FleetLab(database, store, bucketSettings(await store.bucket()));
  }

  /** The settings of a control plane. */
  async settings(): Promise<Readonly<Record<string, string>>> {
    this.#started += 1;
    return {
      PATH: process.env['PATH'] ?? '',
      DATABASE_URL: this.database.url,
      BERTH_DATA_DIR: join(this.folder, `c${this.#started}`),
      BERTH_LISTEN: `127.0.0.1:${await ownPort()}`,
      BERTH_HOSTS_LISTEN: `127.0.0.1:${await ownPort()}`,
      BERTH_SECRET_KEY: this.secret_key.toString('hex'),
      BERTH_ADMIN_PASSWORD: PASSWORD,
      BERTH_RATE_LIMITS: 'off',
      ...this.bucket,
    };
  }

  /** Runs the program with these settings, until it ends. */
  run(
    settings: Readonly<Record<string, string>>,
    ...args: string[]
  ): { child: ChildProcess; output: () => string } {
    const child = spawn(process.execPath, [this.main, ...args], {
      env: settings,
      stdio: ['ignore', 'pipe', 'pipe', 'ipc'],
    });
    this.#children.push(child);
    let output = '';
    for (const stream of [child.stdout, child.stderr]) {
      stream?.setEncoding('utf8').on('data', (text: string) => {
        output += text;
      });
    }
    return { child, output: () => output };
  }

  /** Starts one more control plane. Resolves when it serves its API and the others know it. */
  async controlPlane(change: Readonly<Record<string, string>> = {}): Promise<ControlPlaneProcess> {
    const settings = { ...(await this.settings()), ...change };
    await makeDataFolder(pathsIn(settings['BERTH_DATA_DIR'] ?? ''));
    const { child, output } = this.run(settings, 'control-plane');
    const port = portIn(settings['BERTH_LISTEN']);
    const client = new RestClient(`http://127.0.0.1:${port}`);
    const answers = async () => {
      assert(child.exitCode === null, output());
      await client.login('admin@localhost', PASSWORD);
    };
    await untilWorks('the control plane answers', answers, READY);
    return {
      ...{ port, hosts_port: portIn(settings['BERTH_HOSTS_LISTEN']), client, output },
      kill: async (signal = 'SIGKILL') => {
        if (child.exitCode !== null || child.signalCode !== null) return;
        const gone = once(child, 'exit');
        child.kill(signal);
        await gone;
      },
    };
  }

  /** A host that joins at the given port, by a token as `berth host add` prints it. It knows no other control plane yet. */
  async host(
    name: string,
    port: number,
    options: Omit<SimulatedHostOptions, 'client'> = {},
  ): Promise<SimulatedHost> {
    return this.hostWith(await this.token(name), port, options);
  }

  async hostWith(
    join_token: string,
    port: number,
    options: Omit<SimulatedHostOptions, 'client'> = {},
  ): Promise<SimulatedHost> {
    const { token, fingerprint } = parseJoinToken(join_token) ?? assert.fail('a join token');
    const client = new ControlPlaneClient({ address: `https://127.0.0.1:${port}`, token, fingerprint });
    const host = new SimulatedHost({ ...options, client });
    this.#hosts.push(host);
    await host.connect();
    return host;
  }

  /** As what `berth host add` prints, of a host that has joined already. */
  async token(name: string): Promise<string> {
    const token = `berth_host_${randomBytes(24).toString('hex')}0`;
    const { db } = this.database;
    const capacity = { cpus: 64, memory_mib: 256 * 1024 };
    const join_hash = randomBytes(32);
    assert(await insertRemoteHost(db, name, join_hash, capacity));
    assert(await useJoinToken(db, join_hash, hashToken(token)));
    return composeJoinToken(token, await this.certificate());
  }

  /** What hosts and ingresses pin, in PEM. */
  async certificate(): Promise<string> {
    const { db } = this.database;
    const root_key = (await findRootKey(db, this.secret_key)) ?? assert.fail('the root key does not open');
    return (await hostsCertificate(db, root_key)).cert;
  }

  /** A new instance whose VM runs. */
  async running(at: ControlPlaneProcess, name: string): Promise<InstanceId> {
    const { id } = await at.client.expect<InstanceBody>(201, 'POST', '/v1/instances', { name });
    const path = `/v1/instances/${id}/vm`;
    await untilWorks('it is placed', () => at.client.expect(202, 'POST', path));
    await until(
      'it runs',
      async () => (await at.client.expect<VmBody>(200, 'GET', path)).state === 'running',
    );
    return id as InstanceId;
  }

  async dispose(): Promise<void> {
    this.#disposed();
    await Promise.all(this.#hosts.map((host) => host.close()));
    for (const child of this.#children) {
      if (child.exitCode !== null || child.signalCode !== null) continue;
      const gone = once(child, 'exit');
      child.kill('SIGKILL');
      await gone;
    }
    await this.#store.close();
    await this.database.close();
    rmSync(this.folder, { recursive: true, force: true, maxRetries: 5 });
  }
}

function portIn(address = ''): number {
  return Number(address.split(':')[1]);
}

/** Passes each connection on to the next of these ports, as a balancer of TCP does. */
export class Balancer {
  readonly port: number;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  /** Connections so far, by port. */
  readonly passed = new Map<number, number>();

  private constructor(server: Server, port: number) {
    this.#server = server;
    this.port = port;
  }

  static async open(ports: readonly number[]): Promise<Balancer> {
    const server = createServer();
    const port = await ownPort();
    const balancer = new Balancer(server, port);
    let next = 0;
    server.on('connection', (socket) => balancer.#pass(socket, ports, next++));
    server.listen(port, '127.0.0.1');
    await once(server, 'listening');
    return balancer;
  }

  #pass(socket: Socket, ports: readonly number[], turn: number): void {
    this.#keep(socket);
    const port = ports[turn % ports.length] ?? 0;
    const to = this.#keep(connect({ host: '127.0.0.1', port }));
    to.once('connect', () => this.passed.set(port, (this.passed.get(port) ?? 0) + 1));
    to.once('close', () => socket.destroy());
    socket.once('close', () => to.destroy());
    socket.pipe(to).pipe(socket);
  }

  #keep(socket: Socket): Socket {
    this.#sockets.add(socket);
    socket.on('error', () => socket.destroy());
    socket.once('close', () => this.#sockets.delete(socket));
    return socket;
  }

  async close(): Promise<void> {
    const closed = once(this.#server, 'close');
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
    await closed;
  }
}

/** Waits until the host's client knows so many control planes, by its heartbeats. */
export async function untilKnown(host: SimulatedHost, count: number): Promise<void> {
  await until(`the host knows ${count} control planes`, async () => {
    await host.heartbeat().catch(() => undefined);
    return host.client.control_planes === count;
  });
}
