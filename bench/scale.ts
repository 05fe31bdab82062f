/**
 * Measures what a fleet costs the control plane as it grows from 100 to 20,000 instances: 200 simulated hosts
 * (test/simulated-host/), a real control plane and PostgreSQL. Instances are created through the API, and are stopped
 * unless a figure starts them.
 *
 * - At each size: requests, one after the other; then half a minute without requests.
 * - At the last size also: 1,000 starts a minute for ten minutes, spread evenly, with 200 readers of the event stream.
 *   Each VM is stopped a minute later.
 *
 * Everything is measured once, with many requests for each figure; `runs` counts the requests.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import { setTimeout as sleep } from 'node:timers/promises';
import pg from 'pg';
import { pathsIn } from '../src/config/paths.ts';
import { type Db, openPool } from '../src/control-plane/db/pool.ts';
import { hashToken } from '../src/control-plane/identity/tokens.ts';
import { runningDatabaseUrl } from '../src/launcher/embedded-postgres.ts';
import { ControlPlaneClient } from '../src/protocol/client.ts';
import { present } from '../src/shared/assert.ts';
import { messageOf } from '../src/shared/errors.ts';
import { type InstanceId, newId } from '../src/shared/ids.ts';
import { createLog, type Log } from '../src/shared/log.ts';
import { FACTS } from '../test/support/scripted-agent.ts';
import { type Bench, type HostContext, type Measured, measured, quantile } from './figure.ts';
import { Installation } from './installation.ts';
import { cpuSeconds, familyMib, familySeconds, residentMib } from './process-cost.ts';
import { timeTasks } from './scale-tasks.ts';

const PROJECT_DIR = join(import.meta.dirname, '..');
const HOSTS = 200;
const SIZES = [100, 1_000, 20_000] as const;
/** An instance has one of so many labels: at each size, a page by label is full. */
const GROUPS = 5;
const SAMPLES = 100;
const MAKERS = 8;
const IDLE_S = 30;
/** Disks in a heartbeat. */
const REPORTED = 50;
const TASK_RUNS = 10;
const STREAMS = 200;
const STARTS_A_MINUTE = 1_000;
const STARTS_MINUTES = 10;
const RUNS_FOR_MS = 60_000;
/** Enough for all instances; below the kernel's ephemeral ports. */
const SSH_PORTS = '10000-31000';

/** The figures of one size: samples in the unit of the figure. */
type AtSize = Record<Name, readonly number[]>;
const UNITS = {
  create: 'ms',
  delete: 'ms',
  start_to_answer: 'ms',
  get: 'ms',
  list_first_page: 'ms',
  list_deep_page: 'ms',
  list_by_label: 'ms',
  heartbeat: 'ms',
  tasks: 'ms',
  idle: '% of a core',
  idle_control_plane: '% of a core',
  idle_postgresql: '% of a core',
  control_plane_memory: 'MiB',
  postgresql_memory: 'MiB',
  database: 'MiB',
} as const;
type Name = keyof typeof UNITS;

/** % of a core. */
interface Shares {
  readonly control_plane: number;
  readonly postgresql: number;
}

interface ManyStarts {
  /** The ms until each answer. */
  readonly placed: number[];
  /** The ms until each VM ran. */
  readonly running: number[];
  /** Other answers. */
  readonly refused: number;
  readonly shares: Shares;
}

/** What this process measures without the API. */
interface Probes {
  /** As a host of its own, on which nothing runs. */
  readonly host: ControlPlaneClient;
  readonly pool: Db;
  readonly log: Log;
}

class Fleet {
  readonly ids: string[] = [];
  readonly installation: Installation;
  readonly db: pg.Client;
  readonly #probes: Probes;
  readonly #context: HostContext;

  constructor(installation: Installation, db: pg.Client, probes: Probes, context: HostContext) {
    this.installation = installation;
    this.db = db;
    this.#probes = probes;
    this.#context = context;
  }

  get #api() {
    return this.installation.api;
  }

  /** Several at a time, as several people would. */
  async growTo(size: number): Promise<void> {
    const make = async () => {
      while (this.ids.length < size) {
        const at = this.ids.push('') - 1;
        this.ids[at] = await this.#create(`scale-${at}`, at);
        if (at % 1_000 === 999) this.#context.say(`${at + 1} instances`);
      }
    };
    await Promise.all(Array.from({ length: MAKERS }, make));
    await this.db.query('vacuum analyze');
  }

  async #create(name: string, at: number): Promise<string> {
    const labels = { group: `g${at % GROUPS}` };
    const body = { name, labels, memory_mib: 256, auto_flush_seconds: null };
    return (await this.#api.call<{ id: string }>('POST', '/v1/instances', body)).id;
  }

  async measure(): Promise<AtSize> {
    const api = this.#api;
    const some = Array.from({ length: SAMPLES }, (_, at) => this.ids[(at * 7_919) % this.ids.length] ?? '');
    const made: string[] = [];
    const create = await timed(SAMPLES, async (at) => {
      made.push(await this.#create(`made-${this.ids.length}-${at}`, at));
    });
    const remove = await timed(SAMPLES, (at) => api.call('DELETE', `/v1/instances/${made[at]}`));
    const start = await timed(SAMPLES, (at) => api.startVm(some[at] ?? ''));
    for (const id of some) await this.#stop(id);
    const get = await timed(SAMPLES, (at) => api.call('GET', `/v1/instances/${some[at]}`));
    const page = (query: string) => () =>
      api.call<{ items: unknown[]; next_cursor: string | null }>('GET', `/v1/instances?limit=20${query}`);
    const first = await timed(SAMPLES, page(''));
    const deep = await timed(SAMPLES, page(await this.#deepCursor()));
    const by_label = await timed(SAMPLES, page('&label=group%3Dg3'));
    const heartbeat = await this.#heartbeats(some);
    const tasks = await this.#tasks();
    const idle = await this.#idle();
    const { rows } = await this.db.query<{ bytes: string }>(
      'select pg_database_size(current_database()) as bytes',
    );
    return {
      ...{ create, delete: remove, start_to_answer: start, get },
      ...{ list_first_page: first, list_deep_page: deep, list_by_label: by_label },
      ...{ heartbeat, tasks, ...idle },
      control_plane_memory: [residentMib(this.installation.pidOf('control-plane'))],
      postgresql_memory: [familyMib(this.installation.postgres_pid)],
      database: [Number(rows[0]?.bytes) / 2 ** 20],
    };
  }

  /** Of disks that the control plane looks up, and then ignores because they are on other hosts. */
  #heartbeats(ids: readonly string[]): Promise<number[]> {
    const some = ids.slice(0, REPORTED) as InstanceId[];
    const disks = some.map((instance_id) => ({ instance_id, dirty_bytes: 0 }));
    return timed(SAMPLES, () => this.#probes.host.heartbeat({ facts: FACTS, disks }));
  }

  async #tasks(): Promise<number[]> {
    const taken: number[] = [];
    for (let run = 0; run < TASK_RUNS; run++) {
      const { ms, slowest } = await timeTasks(this.#probes.pool, this.#probes.log);
      taken.push(ms);
      this.#context.say(`background tasks: ${ms.toFixed(1)} ms; ${slowest}`);
    }
    return taken;
  }

  async #stop(id: string): Promise<void> {
    await this.#api.untilRunning(id);
    await this.#api.stopVm(id);
  }

  /** Of the page behind four fifths of the list. */
  async #deepCursor(): Promise<string> {
    const step = Math.min(200, this.ids.length / 5);
    let query = '';
    for (let passed = 0; passed < this.ids.length * 0.8; passed += step) {
      const path = `/v1/instances?limit=${step}${query}`;
      const { next_cursor } = await this.#api.call<{ next_cursor: string | null }>('GET', path);
      if (next_cursor === null) throw new Error('the list ends too early');
      query = `&cursor=${encodeURIComponent(next_cursor)}`;
    }
    return query;
  }

  async #idle(): Promise<Pick<AtSize, 'idle' | 'idle_control_plane' | 'idle_postgresql'>> {
    // What the requests left to do ends before.
    await sleep(10_000, undefined, { signal: this.#context.signal });
    const { control_plane, postgresql } = await this.#shares(() =>
      sleep(IDLE_S * 1_000, undefined, { signal: this.#context.signal }),
    );
    return {
      idle: [control_plane + postgresql],
      idle_control_plane: [control_plane],
      idle_postgresql: [postgresql],
    };
  }

  /** % of a core that each uses meanwhile. */
  async #shares(during: () => Promise<unknown>): Promise<Shares> {
    const spent = () => ({
      control_plane: cpuSeconds(this.installation.pidOf('control-plane')),
      postgresql: familySeconds(this.installation.postgres_pid),
    });
    const [began, before] = [performance.now(), spent()];
    await during();
    const [seconds, after] = [(performance.now() - began) / 1_000, spent()];
    const share = (name: keyof Shares) => (100 * (after[name] - before[name])) / seconds;
    return { control_plane: share('control_plane'), postgresql: share('postgresql') };
  }

  /** Starts instances at a steady rate, and stops each a minute later. */
  async startMany(): Promise<ManyStarts> {
    const placed: number[] = [];
    const running: number[] = [];
    let refused = 0;
    const streams = new AbortController();
    for (let at = 0; at < STREAMS; at++) void this.#followEvents(streams.signal);
    const one = async (id: string) => {
      const asked = performance.now();
      await this.#api.startVm(id);
      placed.push(performance.now() - asked);
      await this.#api.untilRunning(id);
      running.push(performance.now() - asked);
      await sleep(RUNS_FOR_MS, undefined, { signal: this.#context.signal });
      await this.#api.stopVm(id);
    };
    const all: Promise<void>[] = [];
    const began = performance.now();
    const startAll = async () => {
      for (let at = 0; at < STARTS_A_MINUTE * STARTS_MINUTES; at++) {
        const early = began + (at * 60_000) / STARTS_A_MINUTE - performance.now();
        if (early > 0) await sleep(early, undefined, { signal: this.#context.signal });
        const started = one(this.ids[at % this.ids.length] ?? '');
        all.push(
          started.catch((error: unknown) => {
            refused += 1;
            this.#context.say(messageOf(error));
          }),
        );
        if (at % STARTS_A_MINUTE === 0) this.#context.say(`starts: minute ${at / STARTS_A_MINUTE + 1}`);
      }
    };
    const shares = await this.#shares(startAll);
    await Promise.all(all);
    streams.abort();
    return { placed, running, refused, shares };
  }

  async #followEvents(signal: AbortSignal): Promise<void> {
    const { url, authorization } = this.#api;
    const headers = { ...authorization, accept: 'text/event-stream' };
    const response = await fetch(`${url}/v1/events`, { headers, signal }).catch(() => null);
    if (response !== null && !response.ok) this.#context.say(`a stream was refused: ${response.status}`);
    await response?.body?.pipeTo(new WritableStream(), { signal }).catch(() => undefined);
  }
}

async function timed(times: number, request: (at: number) => Promise<unknown>): Promise<number[]> {
  const taken: number[] = [];
  for (let at = 0; at < times; at++) {
    const began = performance.now();
    await request(at);
    taken.push(performance.now() - began);
  }
  return taken;
}

/** Returns the credential of a new host. */
async function addHost(db: pg.Client, name: string): Promise<string> {
  const token = `berth_host_${randomBytes(32).toString('base64url')}`;
  await db.query('insert into hosts (id, name, token_hash) values ($1, $2, $3)', [
    newId('host'),
    name,
    hashToken(token),
  ]);
  return token;
}

async function simulateHosts(installation: Installation, db: pg.Client): Promise<ChildProcess> {
  const { agent_api_socket } = pathsIn(installation.data_dir);
  // No VM is placed on the real host of this machine.
  await db.query('update hosts set cordoned = true');
  const program = join(PROJECT_DIR, 'test', 'simulated-host', 'host-program.ts');
  const child = spawn(process.execPath, [program, agent_api_socket], { stdio: ['pipe', 'pipe', 'inherit'] });
  for (let at = 0; at < HOSTS; at++) {
    child.stdin?.write(`${await addHost(db, `simulated-${at}`)}\n`);
  }
  child.stdin?.write('\n');
  if (child.stdout === null) throw new Error('piped stdout');
  await once(createInterface({ input: child.stdout }), 'line');
  return child;
}

async function probesOf({ data_dir }: Installation, db: pg.Client): Promise<Probes> {
  const paths = pathsIn(data_dir);
  const address = `unix:${paths.agent_api_socket}`;
  const token = await addHost(db, 'measured');
  await db.query("update hosts set cordoned = true where name = 'measured'");
  return {
    host: new ControlPlaneClient({ address, token }),
    pool: openPool(present(await runningDatabaseUrl(paths), 'database'), () => undefined),
    log: createLog('bench', 'error'),
  };
}

function figures(sizes: ReadonlyMap<number, AtSize>): Measured[] {
  const smallest = sizes.get(SIZES[0]);
  if (smallest === undefined) return [];
  return [...sizes].slice(1).flatMap(([size, at]) =>
    (Object.keys(UNITS) as Name[]).map((name) =>
      measured({
        ...{ bench: 'scale', figure: `${name}_${size}`, unit: UNITS[name], values: at[name] },
        ...{ beside: `with ${SIZES[0]} instances`, beside_values: smallest[name], remark: '' },
      }),
    ),
  );
}

async function run(context: HostContext): Promise<Measured[]> {
  const { scratch_dir, signal, say } = context;
  await using cleanup = new AsyncDisposableStack();
  const dir = join(scratch_dir, 'fleet');
  await mkdir(dir, { mode: 0o711 });
  const installation = await Installation.start({
    ...{
      project_dir: PROJECT_DIR,
      data_dir: join(dir, 'data'),
      log_path: join(dir, 'log'),
      accel: 'tcg',
      signal,
    },
    settings: { BERTH_SSH_PORTS: SSH_PORTS },
  });
  cleanup.defer(() => installation.end());
  const db = new pg.Client(await runningDatabaseUrl(pathsIn(installation.data_dir)));
  await db.connect();
  cleanup.defer(() => db.end());
  const hosts = await simulateHosts(installation, db);
  cleanup.defer(async () => {
    hosts.stdin?.end();
    if (hosts.exitCode === null) await once(hosts, 'exit');
  });
  const probes = await probesOf(installation, db);
  cleanup.defer(async () => {
    await probes.host.close();
    await probes.pool.destroy();
  });
  const fleet = new Fleet(installation, db, probes, context);
  const sizes = new Map<number, AtSize>();
  for (const size of SIZES) {
    await fleet.growTo(size);
    say(`measuring with ${size} instances`);
    sizes.set(size, await fleet.measure());
  }
  const { placed, running, refused, shares } = await fleet.startMany();
  const idle = sizes.get(SIZES[2]);
  const busy = (name: keyof Shares) =>
    measured({
      ...{ bench: 'scale', figure: `many_starts_${name}`, unit: '% of a core', values: [shares[name]] },
      ...{ beside: 'idle', beside_values: idle?.[`idle_${name}`] ?? [], remark: '' },
    });
  const limit = (figure: string, values: readonly number[], q: number, beside: string, at: number) =>
    measured({
      ...{ bench: 'scale', figure, unit: 'ms', values: [quantile(values, q)] },
      ...{ beside, beside_values: [at], remark: `${values.length} starts, ${refused} refused` },
    });
  return [
    ...figures(sizes),
    limit('many_starts_to_answer_p50', placed, 0.5, 'the aim for p99', 250),
    limit('many_starts_to_answer_p99', placed, 0.99, 'the aim', 250),
    limit('many_starts_to_running_p99', running, 0.99, 'the aim for the answer', 250),
    busy('control_plane'),
    busy('postgresql'),
  ];
}

export const scaleBench: Bench = {
  name: 'scale',
  summary: 'a fleet of 200 simulated hosts with 100, 1,000 and 20,000 instances',
  alone: true,
  run,
};
