/**
 * Runs highly available PostgreSQL from Debian's packages: three nodes, each with etcd, Patroni and PostgreSQL in a
 * network namespace of its own, and HAProxy in the namespace where the clients run. Patroni and HAProxy have the
 * settings in `deploy/`, with other addresses, names, folders and passwords.
 *
 *     client (HAProxy, .10) ─ bridge ─ p1 (.11), p2 (.12), p3 (.13)
 *
 * Patroni uses etcd's v2 API: Debian's Patroni 3.0.2 loses acknowledged commits with v3 (docs/operating/postgresql.md).
 */
import { execFileSync, spawn } from 'node:child_process';
import {
  chmodSync,
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { commandLineOf } from '../../src/host/qemu/qemu-process.ts';
import { deleteNamespace, inNamespace, ip } from './egress-outside.ts';
import { endIfInterrupted } from './interrupted.ts';
import { until } from './waiting.ts';

const DEPLOY = join(import.meta.dirname, '..', '..', 'deploy');
const NET = '10.77.0';
const NODES = [1, 2, 3] as const;
export type Node = (typeof NODES)[number];
const PROGRAMS = ['/usr/bin/etcd', '/usr/bin/patroni', '/usr/sbin/haproxy'];
const BINARIES = '/usr/lib/postgresql/15/bin';
const USER = 'berth:test-only';
/** Of PostgreSQL's superuser. */
const ROOT = 'postgres:test-only-superuser';
const ENV = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C.UTF-8' };
export const FAULTS = ['kill', 'pause', 'cut'] as const;
export type Fault = (typeof FAULTS)[number];

/** Why it cannot run here, or null. */
export function patroniMissing(): string | null {
  if (process.getuid?.() !== 0) return 'needs root, for network namespaces';
  const missing = [...PROGRAMS, `${BINARIES}/postgres`].filter((path) => !existsSync(path));
  if (missing.length === 0) return null;
  return `needs ${missing.join(', ')} (apt-get install patroni etcd-server haproxy postgresql-15)`;
}

export class PatroniCluster {
  /** All servers, as libpq writes them. */
  readonly url =
    `postgresql://${USER}@${NODES.map((node) => `${NET}.1${node}:5432`).join(',')}/berth?target_session_attrs=read-write`;
  /** One address, which leads to the leader. */
  readonly proxy_url = `postgresql://${USER}@${NET}.10:5432/berth`;
  readonly folder: string;
  readonly #prefix = `berth-ha${process.pid}`;
  readonly #away: () => void;

  private constructor(folder: string) {
    this.folder = folder;
    this.#away = endIfInterrupted(() => this.close());
  }

  static async start(): Promise<PatroniCluster> {
    const cluster = new PatroniCluster(await mkdtemp(join(tmpdir(), 'berth-patroni-')));
    try {
      cluster.#makeNetwork();
      for (const node of NODES) cluster.#startEtcd(node);
      for (const node of NODES) cluster.#writePatroni(node);
      for (const node of NODES) cluster.#startPatroni(node);
      cluster.#startProxy();
      await cluster.untilHealthy();
      cluster.#createDatabase();
      return cluster;
    } catch (error) {
      await cluster.close();
      throw error;
    }
  }

  /** Of the namespace where clients run. */
  get clients(): string {
    return this.#namespace('client');
  }

  /** The namespace of the bridge that its nodes are on, `br0`. */
  get bridge(): string {
    return this.#name('bridge');
  }

  /** One leader, and two standbys that stream, one of them synchronously, as the leader sees it: who was cut off knows less. */
  async untilHealthy(): Promise<void> {
    await until('three nodes, one of them a synchronous standby', () => {
      const node = this.leader();
      if (node === undefined) return false;
      const { members = [] } = JSON.parse(this.#curl(node, 'cluster', []) || '{}') as {
        members?: { name: string; role: string; state: string; timeline?: number }[];
      };
      const [leader] = members.filter(({ role }) => role === 'leader');
      const streaming = members.filter(
        ({ role, state, timeline }) =>
          role !== 'leader' && ['running', 'streaming'].includes(state) && timeline === leader?.timeline,
      );
      const is_safe = members.some(({ role }) => role === 'sync_standby');
      return leader?.name === `p${node}` && streaming.length === 2 && is_safe;
    });
  }

  /** The node that takes writes now, or undefined. */
  leader(): Node | undefined {
    return NODES.find((node) => this.#status(node, 'primary') === '200');
  }

  /** The rows of a query on the leader, as text. */
  query(text: string): string[][] {
    const leader = NODES.find((node) => this.#status(node, 'primary') === '200') ?? 1;
    const url = `postgresql://${USER}@${NET}.1${leader}:5432/berth`;
    const out = inNamespace(this.clients, `${BINARIES}/psql`, ['-AtqF', '\t', '-c', text, url]);
    return out
      .split('\n')
      .filter(Boolean)
      .map((line) => line.split('\t'));
  }

  strike(node: Node, fault: Fault): void {
    if (fault === 'cut') ip('-n', this.#name('bridge'), 'link', 'set', `v-${node}`, 'down');
    else this.#signal(node, fault === 'kill' ? 'SIGKILL' : 'SIGSTOP');
  }

  heal(node: Node, fault: Fault): void {
    if (fault === 'cut') ip('-n', this.#name('bridge'), 'link', 'set', `v-${node}`, 'up');
    else if (fault === 'kill') this.#startPatroni(node);
    else this.#signal(node, 'SIGCONT');
  }

  /** Copies the leader's files at one moment to a folder, as a snapshot of its file system would. */
  copyLeader(folder: string): void {
    const node = this.leader() ?? 1;
    this.#signal(node, 'SIGSTOP');
    try {
      rmSync(folder, { recursive: true, force: true });
      execFileSync('cp', ['-a', this.#data(node), folder]);
    } finally {
      this.#signal(node, 'SIGCONT');
    }
    rmSync(join(folder, 'postmaster.pid'), { force: true });
  }

  /** Ends all nodes. `restore` starts them. */
  async endNodes(): Promise<void> {
    for (const node of NODES) this.#signal(node, 'SIGKILL');
    const ended = () => NODES.every((node) => this.#ownPids(node).length === 0);
    await until('PostgreSQL has ended', ended);
  }

  /**
   * Restores the ended cluster to a copy, as an operator does: one node gets it and the others nothing, and etcd forgets what it
   * knows of the cluster but its settings.
   */
  async restore(folder: string): Promise<void> {
    for (const node of NODES) rmSync(this.#data(node), { recursive: true, force: true });
    execFileSync('cp', ['-a', folder, this.#data(1)]);
    for (const key of ['leader', 'sync', 'status', 'optime', 'history', 'failover', 'initialize']) {
      const url = `http://${NET}.11:2379/v2/keys/berth/berth/${key}?recursive=true`;
      inNamespace(this.clients, 'curl', ['-sS', '-m', '10', '-X', 'DELETE', url]);
    }
    // Without the other's key, a node with nothing would begin a cluster of its own.
    this.#startPatroni(1);
    await until('the restored node leads', () => this.leader() === 1);
    for (const node of NODES.slice(1)) this.#startPatroni(node);
  }

  async close(): Promise<void> {
    const spaces = ['client', ...NODES.map((node) => `p${node}`)];
    for (const signal of ['SIGCONT', 'SIGKILL'] as const) {
      for (const name of spaces) for (const pid of this.#pids(name)) kill(pid, signal);
    }
    await until('its processes have ended', () => spaces.every((name) => this.#pids(name).length === 0));
    for (const name of [...spaces, 'bridge']) deleteNamespace(this.#name(name));
    await rm(this.folder, { recursive: true, force: true });
    this.#away();
  }

  #name(name: string): string {
    return `${this.#prefix}-${name}`;
  }
  #namespace(name: string): string {
    return `/run/netns/${this.#name(name)}`;
  }

  #makeNetwork(): void {
    const bridge = this.#name('bridge');
    ip('netns', 'add', bridge);
    ip('-n', bridge, 'link', 'add', 'br0', 'type', 'bridge');
    ip('-n', bridge, 'link', 'set', 'br0', 'up');
    for (const [name, number] of [['client', 10], ...NODES.map((node) => [`p${node}`, 10 + node])] as const) {
      const [space, port] = [this.#name(`${name}`), `v-${name === 'client' ? 'c' : Number(number) - 10}`];
      ip('netns', 'add', space);
      ip('-n', space, 'link', 'set', 'lo', 'up');
      ip('-n', bridge, 'link', 'add', port, 'type', 'veth', 'peer', 'name', 'e0', 'netns', space);
      ip('-n', bridge, 'link', 'set', port, 'master', 'br0', 'up');
      ip('-n', space, 'addr', 'add', `${NET}.${number}/24`, 'dev', 'e0');
      ip('-n', space, 'link', 'set', 'e0', 'up');
    }
  }

  /** As `user`, in a namespace; ends with this process at the latest. Its output goes to a file. */
  #run(space: string, user: string, name: string, command: readonly string[]): void {
    const log = openSync(join(this.folder, `${name}.log`), 'a');
    const ids = ['--reuid', user, '--regid', user, '--init-groups', '--pdeathsig', 'KILL'];
    const args = [`--net=${this.#namespace(space)}`, '--', 'setpriv', ...ids, ...command];
    const child = spawn('nsenter', args, { env: ENV, cwd: '/', stdio: ['ignore', log, log] });
    child.on('error', () => undefined).unref();
    closeSync(log);
  }

  #ownFolder(name: string, user: string): string {
    const path = join(this.folder, name);
    mkdirSync(path, { mode: 0o700 });
    execFileSync('chown', [`${user}:${user}`, path]);
    return path;
  }

  #startEtcd(node: Node): void {
    chmodSync(this.folder, 0o711);
    const at = (port: number, of: number = node) => `http://${NET}.1${of}:${port}`;
    this.#run(`p${node}`, 'etcd', `etcd${node}`, [
      ...['etcd', '--name', `e${node}`, '--data-dir', join(this.#ownFolder(`etcd${node}`, 'etcd'), 'data')],
      ...['--listen-peer-urls', at(2380), '--initial-advertise-peer-urls', at(2380)],
      ...['--listen-client-urls', at(2379), '--advertise-client-urls', at(2379)],
      ...['--initial-cluster', NODES.map((each) => `e${each}=${at(2380, each)}`).join()],
      ...[
        '--heartbeat-interval',
        '100',
        '--election-timeout',
        '1000',
        '--log-level',
        'warn',
        '--enable-v2=true',
      ],
    ]);
  }

  #writePatroni(node: Node): void {
    const folder = this.#ownFolder(`pg${node}`, 'postgres');
    const settings = replaced(readFileSync(join(DEPLOY, 'patroni', 'patroni.yml'), 'utf8'), [
      [/^name: db-1$/gm, `name: p${node}`],
      [/(listen|connect_address): 10\.0\.0\.41/g, `$1: ${NET}.1${node}`],
      [/10\.0\.0\.4([123]):2379/g, `${NET}.1$1:2379`],
      [/10\.0\.0\.0\/24/g, `${NET}.0/24`],
      [/(data_dir: ).*/g, `$1${join(folder, 'data')}`],
      [/(pgpass: ).*/g, `$1${join(folder, 'pgpass')}`],
      [/(unix_socket_directories: ).*/g, `$1${folder}`],
      [/change-me-1/g, 'test-only-superuser'],
      [/change-me-[23]/g, 'test-only-other'],
    ]);
    writeFileSync(join(folder, 'patroni.yml'), settings);
  }

  /** As docs/operating/install.md does it. */
  #createDatabase(): void {
    const leader = this.leader() ?? 1;
    const url = `postgresql://${ROOT}@${NET}.1${leader}:5432/postgres`;
    const [role, password] = USER.split(':');
    const commands = [
      `create role ${role} login password '${password}'`,
      `create database berth owner ${role}`,
    ].flatMap((command) => ['-c', command]);
    inNamespace(this.clients, `${BINARIES}/psql`, ['-q', ...commands, url]);
  }

  #startPatroni(node: Node): void {
    this.#run(`p${node}`, 'postgres', `patroni${node}`, [
      'patroni',
      join(this.folder, `pg${node}`, 'patroni.yml'),
    ]);
  }

  /** Its part for PostgreSQL. */
  #startProxy(): void {
    const path = join(this.folder, 'haproxy.cfg');
    const shipped = readFileSync(join(DEPLOY, 'haproxy', 'haproxy.cfg'), 'utf8');
    const part =
      shipped.slice(0, shipped.indexOf('frontend api')) + shipped.slice(shipped.indexOf('listen postgresql'));
    const settings = replaced(part, [
      // It is started as that user, and there is no log.
      [/^ {2}log \/dev\/log local0\n {2}user haproxy\n {2}group haproxy\n/gm, ''],
      // It wants two open files for each, which this machine may not allow.
      [/maxconn 20000/g, 'maxconn 200'],
      [/bind :5432/g, `bind ${NET}.10:5432`],
      [/10\.0\.0\.4([123]):5432/g, `${NET}.1$1:5432`],
    ]);
    writeFileSync(path, settings);
    this.#run('client', 'haproxy', 'haproxy', ['haproxy', '-db', '-f', path]);
  }

  #pids(name: string): number[] {
    try {
      return execFileSync('ip', ['netns', 'pids', this.#name(name)], { encoding: 'utf8', stdio: 'pipe' })
        .split('\n')
        .filter(Boolean)
        .map(Number);
    } catch {
      return [];
    }
  }

  #data(node: Node): string {
    return join(this.folder, `pg${node}`, 'data');
  }

  /** Patroni and PostgreSQL of a node. Its etcd runs on. */
  #ownPids(node: Node): number[] {
    return this.#pids(`p${node}`).filter((pid) => !/etcd$/.test(commandLineOf(pid)[0] ?? ''));
  }

  #signal(node: Node, signal: NodeJS.Signals): void {
    for (const pid of this.#ownPids(node)) kill(pid, signal);
  }

  #curl(node: Node, path: string, args: readonly string[]): string {
    const url = `http://${NET}.1${node}:8008/${path}`;
    const command = [`--net=${this.clients}`, '--', 'curl', '-sS', '-m', '1', ...args, url];
    try {
      return execFileSync('nsenter', command, { encoding: 'utf8', stdio: 'pipe' });
    } catch {
      return '';
    }
  }
  #status(node: Node, path: string): string {
    return this.#curl(node, path, ['-o', '/dev/null', '-w', '%{http_code}']);
  }
}

/** Each of these must be there. */
function replaced(text: string, changes: readonly (readonly [RegExp, string])[]): string {
  return changes.reduce((now, [from, to]) => {
    if (now.search(from) < 0) throw new Error(`${from} is in no line any more`);
    return now.replaceAll(from, to);
  }, text);
}

function kill(pid: number, signal: NodeJS.Signals): void {
  try {
    process.kill(pid, signal);
  } catch {
    // It has ended.
  }
}
