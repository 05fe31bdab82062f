/**
 * Measures an authenticated `GET /v1/instances/:id/vm` and `POST /v1/api-keys`, compared with bare handlers of one
 * select and one insert (bare-server.ts) on the same database, at 1, 16 and 64 connections.
 *
 * Each server is a separate process; this process generates the load. Writes carry an Idempotency-Key, as our client
 * sends it. Reads request 64 instances in turn, with 64 API keys. All keys belong to one organisation, which is the
 * hardest case for writes: all of them append to one audit chain and notify the same people.
 */
import { type ChildProcess, spawn } from 'node:child_process';
import { once } from 'node:events';
import { closeSync, openSync } from 'node:fs';
import { join } from 'node:path';
import { createInterface } from 'node:readline';
import pg from 'pg';
import { pathsIn } from '../src/config/paths.ts';
import { runningDatabaseUrl } from '../src/launcher/embedded-postgres.ts';
import { present } from '../src/shared/assert.ts';
import { pause } from '../src/shared/retry.ts';
import { type Bench, type BenchContext, type Measured, measured } from './figure.ts';
import { type Load, load, type Target } from './load.ts';
import { cpuSeconds, familySeconds } from './process-cost.ts';

const CONNECTIONS = [1, 16, 64] as const;
const ROUND_MS = 2_000;
/** Warm-up: most code of a new process is not compiled yet. Berth has more code, so it takes longer. */
const WARM_UP_MS = 8_000;
const BESIDE = 'bare Fastify';
const BODY = JSON.stringify({ name: 'made by the benchmark', scope: 'vm:read' });
const JSON_BODY = { 'content-type': 'application/json' };

interface Case {
  readonly name: string;
  readonly berth: Target;
  readonly bare: Target;
}

/** The number of instances and keys: one for each connection, so that concurrent requests differ. */
const DIFFERENT = Math.max(...CONNECTIONS);

async function cases({ installation }: BenchContext, bare: string): Promise<readonly Case[]> {
  const { api } = installation;
  const reads: Target['requests'][number][] = [];
  const writes: Target['requests'][number][] = [];
  const bare_reads: Target['requests'][number][] = [];
  for (let index = 0; index < DIFFERENT; index++) {
    const { id } = await api.createInstance(`requests-${index}`);
    const { key } = await api.call<{ key: string }>('POST', '/v1/api-keys', { name: 'bench', scope: '*' });
    const headers = { authorization: `Bearer ${key}` };
    reads.push({ path: `/v1/instances/${id}/vm`, headers });
    bare_reads.push({ path: `/instances/${id}`, headers });
    writes.push({ path: '/v1/api-keys', headers: { ...headers, ...JSON_BODY } });
  }
  const bare_writes = writes.map(({ headers }) => ({ path: '/rows', headers }));
  const read = { method: 'GET', status: 200 } as const;
  const write = { method: 'POST', status: 201, body: BODY, idempotent: true } as const;
  return [
    {
      name: 'read',
      berth: { ...read, origin: api.url, requests: reads },
      bare: { ...read, origin: bare, requests: bare_reads },
    },
    {
      name: 'write',
      berth: { ...write, origin: api.url, requests: writes },
      bare: { ...write, origin: bare, requests: bare_writes },
    },
  ];
}

class BareServer {
  readonly origin: string;
  readonly #child: ChildProcess;

  private constructor(origin: string, child: ChildProcess) {
    this.origin = origin;
    this.#child = child;
  }

  static async start(database_url: string, log_path: string, signal: AbortSignal): Promise<BareServer> {
    const log_fd = openSync(log_path, 'a', 0o600);
    const program = join(import.meta.dirname, 'bare-server.ts');
    const child = spawn(process.execPath, [program, database_url], { stdio: ['pipe', 'pipe', log_fd] });
    closeSync(log_fd);
    const lines = createInterface({ input: present(child.stdout, 'piped stdout') });
    const ended = once(child, 'exit').then(([code]) => {
      throw new Error(`the bare server ended (exit code ${code}); its log: ${log_path}`);
    });
    const [origin] = await Promise.race([once(lines, 'line', { signal }), ended]);
    ended.catch(() => undefined);
    return new BareServer(String(origin), child);
  }

  get pid(): number {
    return present(this.#child.pid, 'the pid of the bare server');
  }

  async end(): Promise<void> {
    if (this.#child.exitCode !== null || this.#child.signalCode !== null) return;
    const ended = once(this.#child, 'exit');
    this.#child.stdin?.end();
    await ended;
  }
}

/** The background work of a write: its event is dispatched, its audit entry is sealed, its mail is sent. */
const UNFINISHED = `select where exists (select from events where position is null)
  or exists (select from audit_log where seq is null)
  or exists (select from notifications where mail_after <= now()) or exists (select from mails where due_at <= now())`;
const FINISHED_MS = 60_000;

/** Waits until Berth has finished this work, which would otherwise slow the other server. Returns the milliseconds. */
async function finished(db: pg.Client, signal: AbortSignal): Promise<number> {
  const began_ms = performance.now();
  while ((await db.query(UNFINISHED)).rowCount !== 0) {
    if (performance.now() - began_ms > FINISHED_MS)
      throw new Error('the background work of the writes did not finish');
    if (!(await pause(5, signal))) signal.throwIfAborted();
  }
  return performance.now() - began_ms;
}

/** `cpu_ms`: processor time of the server and of PostgreSQL for a request, with the work after its answer. */
type Cost = Load & { readonly cpu_ms: number };

async function costOf(cpu_s: () => number, work: () => Promise<Load>): Promise<Cost> {
  const before_s = cpu_s();
  const made = await work();
  return { ...made, cpu_ms: ((cpu_s() - before_s) * 1000) / made.requests };
}

async function measureCase(
  { name, berth, bare }: Case,
  connections: number,
  { runs, signal, say, installation }: BenchContext,
  db: pg.Client,
  bare_pid: number,
): Promise<readonly Measured[]> {
  const ours: Cost[] = [];
  const theirs: Cost[] = [];
  const postgres_s = () => familySeconds(installation.postgres_pid);
  const berth_s = () => cpuSeconds(installation.pidOf('control-plane')) + postgres_s();
  const bare_s = () => cpuSeconds(bare_pid) + postgres_s();
  for (let round = 0; round <= runs; round++) {
    const round_ms = round === 0 && connections === CONNECTIONS[0] ? WARM_UP_MS : ROUND_MS;
    let rest_ms = 0;
    const a = await costOf(berth_s, async () => {
      const made = await load(berth, connections, round_ms, signal);
      rest_ms = await finished(db, signal);
      return made;
    });
    const b = await costOf(bare_s, () => load(bare, connections, round_ms, signal));
    const shown = (it: Cost) =>
      `${Math.round(it.per_second)}/s, p50 ${it.p50_ms.toFixed(2)} ms, p99 ${it.p99_ms.toFixed(2)} ms, ${it.cpu_ms.toFixed(2)} ms of a core each`;
    const note = round === 0 ? ' (not counted)' : '';
    say(
      `${name}, ${connections} connections, round ${round}${note}: Berth ${shown(a)}, finished ${Math.round(rest_ms)} ms later; bare ${shown(b)}`,
    );
    if (round === 0) continue;
    ours.push(a);
    theirs.push(b);
  }
  const figure = (what: string, unit: string, of: (it: Cost) => number): Measured =>
    measured({
      bench: 'requests',
      figure: `${name}_${connections}_${what}`,
      unit,
      values: ours.map(of),
      beside: BESIDE,
      beside_values: theirs.map(of),
      remark: '',
    });
  return [
    figure('per_second', '/s', (it) => it.per_second),
    figure('p50', 'ms', (it) => it.p50_ms),
    figure('p99', 'ms', (it) => it.p99_ms),
    figure('cpu', 'ms', (it) => it.cpu_ms),
  ];
}

async function run(context: BenchContext): Promise<readonly Measured[]> {
  const { installation, scratch_dir, signal } = context;
  const database_url = await runningDatabaseUrl(pathsIn(installation.data_dir));
  if (database_url === undefined) throw new Error('the database of the installation does not run');
  await using cleanup = new AsyncDisposableStack();
  const db = new pg.Client(database_url);
  cleanup.defer(() => db.end());
  await db.connect();
  const bare = await BareServer.start(database_url, join(scratch_dir, 'bare.log'), signal);
  cleanup.defer(() => bare.end());
  const results: Measured[] = [];
  for (const each of await cases(context, bare.origin)) {
    for (const connections of CONNECTIONS) {
      results.push(...(await measureCase(each, connections, context, db, bare.pid)));
    }
  }
  return results;
}

export const requestsBench: Bench = {
  name: 'requests',
  summary: 'an authenticated read and a write of the API, beside a bare handler with one statement',
  run,
};
