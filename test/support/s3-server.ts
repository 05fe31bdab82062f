/**
 * Runs a real S3 store for tests: Ceph's RADOS Gateway over a cluster of one monitor and one OSD that keeps its objects
 * in memory, on free loopback ports, in its own folder. It is ready in about two seconds.
 *
 * - Its processes end with `close`, and with this process however it ends (`setpriv --pdeathsig`).
 * - The monitor gets the OSD's boot id in advance, because it ignores an OSD with another id for ever.
 * - The cluster has no internal authentication and listens only on loopback.
 */
import assert from 'node:assert/strict';
import { type ChildProcess, execFile, spawn } from 'node:child_process';
import { randomBytes, randomUUID } from 'node:crypto';
import { once } from 'node:events';
import { openSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { CreateBucketCommand, S3Client } from '@aws-sdk/client-s3';
import type { S3Settings } from '../../src/object-store/s3-store.ts';
import { ownPort } from './own-ports.ts';
import { until } from './waiting.ts';

const READY_MS = 180_000;
const END_MS = 5_000;
/** The gateway hangs when it ends after the OSD, so it ends first. */
const END_ORDER = ['rgw', 'osd', 'mon'] as const;
const POOLS = ['.rgw.root', 'log', 'control', 'meta', 'buckets.index', 'buckets.non-ec', 'buckets.data'].map(
  (name) => (name.startsWith('.') ? name : `default.rgw.${name}`),
);
/** The environment without settings of Ceph, proxies and S3. */
const ENV = { PATH: '/usr/sbin:/usr/bin:/sbin:/bin', LANG: 'C.UTF-8' };

/** The settings of an installation that uses a bucket of this server. */
export function bucketSettings({ bucket, ...settings }: S3Settings): Record<string, string> {
  const { endpoint, access_key_id, secret_access_key } = settings;
  assert(endpoint !== null && access_key_id !== null && secret_access_key !== null);
  return {
    BERTH_S3_BUCKET: bucket,
    BERTH_S3_ENDPOINT: endpoint,
    AWS_ACCESS_KEY_ID: access_key_id,
    AWS_SECRET_ACCESS_KEY: secret_access_key,
  };
}

/** Where it runs: the words before each of its commands, and the address of the gateway there. */
export interface S3Place {
  readonly enter: readonly string[];
  readonly address: string;
}

export class S3Server {
  readonly port: number;
  readonly endpoint: string;
  readonly access_key_id = `test${randomBytes(6).toString('hex')}`;
  readonly secret_access_key = randomBytes(20).toString('hex');
  readonly #folder: string;
  readonly #conf: string;
  readonly #place: S3Place;
  readonly #daemons = new Map<string, ChildProcess>();

  private constructor(folder: string, port: number, place: S3Place) {
    this.#folder = folder;
    this.#place = place;
    this.#conf = join(folder, 'ceph.conf');
    this.port = port;
    this.endpoint = `http://${place.address}:${port}`;
  }

  static async start(place: S3Place = { enter: [], address: '127.0.0.1' }): Promise<S3Server> {
    const folder = await mkdtemp(join(tmpdir(), 'berth-s3-'));
    const server = new S3Server(folder, await ownPort(), place);
    try {
      await server.#start(await ownPort());
      return server;
    } catch (error) {
      const logs = await server.#lastWords();
      await server.close();
      throw new Error(`the S3 server did not start: ${error}\n${logs}`, { cause: error });
    }
  }

  /** Creates a bucket, and returns the settings for it. `endpoint` may be a proxy's. */
  async bucket(endpoint = this.endpoint): Promise<S3Settings> {
    const bucket = `bucket-${randomBytes(6).toString('hex')}`;
    const { access_key_id, secret_access_key } = this;
    const client = new S3Client({
      endpoint: this.endpoint,
      region: 'us-east-1',
      forcePathStyle: true,
      credentials: { accessKeyId: access_key_id, secretAccessKey: secret_access_key },
    });
    await client.send(new CreateBucketCommand({ Bucket: bucket }));
    client.destroy();
    const credentials = { access_key_id, secret_access_key, session_token: null };
    return { bucket, endpoint, region: 'us-east-1', ...credentials };
  }

  /** The gateway hangs: connections stay open and nothing answers. Returns what lets it go on. */
  pause(): () => void {
    const gateway = this.#daemons.get('rgw');
    gateway?.kill('SIGSTOP');
    return () => void gateway?.kill('SIGCONT');
  }

  /** Ends its processes, in order, and removes its folder. */
  async close(): Promise<void> {
    for (const name of END_ORDER) {
      const daemon = this.#daemons.get(name);
      if (!daemon || daemon.exitCode !== null || daemon.signalCode !== null) continue;
      const exited = once(daemon, 'exit');
      const impatience = setTimeout(() => daemon.kill('SIGKILL'), END_MS);
      daemon.kill('SIGTERM');
      await exited;
      clearTimeout(impatience);
    }
    await rm(this.#folder, { recursive: true, force: true });
  }

  async #start(mon_port: number): Promise<void> {
    const fsid = randomUUID();
    const osd_uuid = randomUUID();
    for (const name of ['mon', 'osd', 'rgw', 'log']) await mkdir(join(this.#folder, name));
    await writeFile(this.#conf, this.#configuration(fsid, mon_port));
    const monmap = join(this.#folder, 'monmap');
    const address = `[v2:127.0.0.1:${mon_port}]`;
    await this.#tool('monmaptool', ['--create', '--fsid', fsid, '--addv', 'a', address, monmap]);
    await this.#tool('ceph-mon', [...['-c', this.#conf, '-i', 'a'], ...['--mkfs', '--monmap', monmap]]);
    this.#daemon('mon', 'ceph-mon', ['-i', 'a', '-f']);
    await this.#tool('ceph-osd', ['-c', this.#conf, '-i', '0', '--mkfs', '--osd-uuid', osd_uuid]);
    await this.#createPools(osd_uuid);
    this.#daemon('osd', 'ceph-osd', ['-i', '0', '-f']);
    const user = ['user', 'create', '--uid=test', '--display-name=test'];
    const keys = [`--access-key=${this.access_key_id}`, `--secret-key=${this.secret_access_key}`];
    await this.#tool('radosgw-admin', ['-c', this.#conf, ...user, ...keys]);
    this.#daemon('rgw', 'radosgw', ['-n', 'client.rgw', '-f']);
    const answers = async () => {
      this.#requireDaemons();
      return (await fetch(this.endpoint).catch(() => undefined))?.status === 200;
    };
    await until('the gateway answers', answers, { timeout_ms: READY_MS });
  }

  async #createPools(osd_uuid: string): Promise<void> {
    const commands = [
      `osd new ${osd_uuid} 0`,
      ...POOLS.flatMap((pool) => [
        `osd pool create ${pool} ${pool.endsWith('.data') ? '8 8' : '1 1'} replicated`,
        `osd pool application enable ${pool} rgw`,
      ]),
    ];
    const said = await this.#tool('ceph', ['-c', this.#conf, '--connect-timeout', '120'], commands);
    assert(!/^Error/m.test(said), said); // it exits with 0 all the same
  }

  #daemon(name: string, command: string, args: readonly string[]): void {
    const log = openSync(join(this.#folder, 'log', `${name}.out`), 'a');
    const [program, ...words] = this.#enter([
      'setpriv',
      '--pdeathsig',
      'KILL',
      command,
      '-c',
      this.#conf,
      ...args,
    ]);
    this.#daemons.set(name, spawn(program, words, { stdio: ['ignore', log, log], env: ENV }));
  }

  async #tool(command: string, args: readonly string[], input: readonly string[] = []): Promise<string> {
    this.#requireDaemons();
    const [program, ...words] = this.#enter([command, ...args]);
    const running = promisify(execFile)(program, words, { timeout: READY_MS, env: ENV });
    running.child.stdin?.end(input.map((line) => `${line}\n`).join(''));
    const { stdout, stderr } = await running;
    return `${stdout}${stderr}`;
  }

  #enter(command: readonly [string, ...string[]]): [string, ...string[]] {
    return [...this.#place.enter, ...command] as [string, ...string[]];
  }

  #requireDaemons(): void {
    for (const [name, { exitCode, signalCode }] of this.#daemons) {
      assert(exitCode === null && signalCode === null, `${name} has ended (${signalCode ?? exitCode})`);
    }
  }

  async #lastWords(): Promise<string> {
    const logs = [...this.#daemons.keys()].map((name) => join(this.#folder, 'log', `${name}.out`));
    const texts = await Promise.all(logs.map((path) => readFile(path, 'utf8').catch(() => '')));
    return texts.map((text) => text.slice(-1_000)).join('\n');
  }

  #configuration(fsid: string, mon_port: number): string {
    return `[global]
fsid = ${fsid}
mon_host = [v2:127.0.0.1:${mon_port}/0]
public_addr = 127.0.0.1
cluster_addr = 127.0.0.1
ms_bind_msgr1 = false
auth_cluster_required = none
auth_service_required = none
auth_client_required = none
# The gateway asks for "secure" by itself, which rules "none" out.
ms_mon_client_mode = crc
ms_mon_cluster_mode = crc
ms_mon_service_mode = crc
log_file = ${this.#folder}/log/$name.log
mon_cluster_log_file = /dev/null
debug_rocksdb = 1/1
admin_socket =
pid_file =
run_dir = ${this.#folder}
crash_dir = ${this.#folder}/log
keyring = /dev/null
osd_pool_default_size = 1
osd_pool_default_min_size = 1
osd_pool_default_pg_autoscale_mode = off
osd_crush_chooseleaf_type = 0
mon_max_pg_per_osd = 1000
mon_allow_pool_size_one = true
mon_warn_on_pool_no_redundancy = false

[mon]
mon_data = ${this.#folder}/mon
mon_data_avail_warn = 1
mon_data_avail_crit = 0
paxos_propose_interval = 0.05
paxos_min_wait = 0.01

[osd]
osd_data = ${this.#folder}/osd
osd_objectstore = memstore
memstore_device_bytes = ${4 * 2 ** 30}
osd_class_update_on_start = false
osd_fast_shutdown = true

[client]
rgw_data = ${this.#folder}/rgw
# Without it many answers wait 40 ms for a delayed acknowledgement.
rgw_frontends = beast endpoint=${this.#place.address}:${this.port} tcp_nodelay=1
rgw_enable_apis = s3
rgw_thread_pool_size = 64
# Several fight for a lock, and then hold the end up.
rgw_lc_max_worker = 1
# A client that starts before the OSD is up looks again at each tick.
objecter_tick_interval = 0.5
`;
  }
}
