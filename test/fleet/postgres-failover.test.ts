/**
 * PostgreSQL fails over under load: the leader is killed, stopped and cut off from the network, while clients write through
 * two control planes. What was acknowledged is then read by psql, without any of our code.
 */
import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createInterface } from 'node:readline';
import { type TestContext, test } from 'node:test';
import { fileURLToPath } from 'node:url';
import type { Line } from '../support/failover-load.ts';
import { FAULTS, type Fault, PatroniCluster, patroniMissing } from '../support/patroni.ts';
import { thorough } from '../support/thorough.ts';
import { until } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

const LOAD = fileURLToPath(import.meta.resolve('../support/failover-load.ts'));
const ROUNDS = Number(process.env['BERTH_TEST_FAILOVERS'] ?? 2);
/** Writes acknowledged before a fault, and by the next leader. */
const WRITES = 100;

const seconds = (ms: number) => `${(ms / 1_000).toFixed(1)} s`;
const missing = patroniMissing();
const only = missing === null ? THOROUGH : { skip: missing };

interface Load {
  readonly lines: Line[];
  end(): Promise<void>;
}

function startLoad(t: TestContext, cluster: PatroniCluster): Load {
  const args = [`--net=${cluster.clients}`, '--', process.execPath, LOAD, cluster.url, cluster.proxy_url];
  const child = spawn('nsenter', args, { stdio: ['pipe', 'pipe', 'inherit'] });
  t.after(() => child.kill('SIGKILL'));
  const lines: Line[] = [];
  createInterface({ input: child.stdout }).on('line', (line) => lines.push(JSON.parse(line) as Line));
  const exited = once(child, 'exit');
  return {
    lines,
    end: async () => {
      child.stdin.end();
      assert.deepEqual(await exited, [0, null]);
    },
  };
}

type Write = Exclude<Extract<Line, { at_ms: number }>, { kind: 'failure' }>;
const isWrite = (line: Line): line is Write => line.kind !== 'failure' && line.kind !== 'wrong';

type Named = Extract<Line, { name: string }>;
const isNamed = (line: Line): line is Named => line.kind === 'account' || line.kind === 'instance';

/** The longest time without an acknowledged write since `from_ms`. */
function longestGap(lines: readonly Line[], from_ms: number): number {
  const times = [
    from_ms,
    ...lines
      .filter(isWrite)
      .map(({ at_ms }) => at_ms)
      .filter((at) => at >= from_ms),
  ];
  return Math.max(...times.slice(1).map((at, i) => at - (times[i] ?? at)));
}

/** Strikes the leader, and waits until another node serves. Returns what happened, in words. */
async function failOver(cluster: PatroniCluster, { lines }: Load, fault: Fault): Promise<string> {
  const count = () => lines.filter(isWrite).length;
  const before = count();
  await until('the load writes', () => count() > before + WRITES);
  const leader = await until('a node leads', () => cluster.leader());
  const began = Date.now();
  cluster.strike(leader, fault);
  await until('another node leads', () => {
    const now = cluster.leader();
    return now !== undefined && now !== leader;
  });
  const led_ms = Date.now() - began;
  const after = count();
  await until('it takes writes', () => count() > after + WRITES);
  const gap_ms = longestGap(lines, began);
  cluster.heal(leader, fault);
  await cluster.untilHealthy();
  const failed = lines.filter((line) => line.kind === 'failure' && line.at_ms >= began).length;
  return `another node led after ${seconds(led_ms)}, no write for ${seconds(gap_ms)}, ${failed} attempts failed`;
}

/** Every acknowledged write is there, once. */
function check(cluster: PatroniCluster, lines: readonly Line[]): void {
  for (const [kind, table, pattern] of [
    ['account', 'service_accounts', 'w[0-9]+-%'],
    ['instance', 'instances', 'm[0-9]+-%'],
  ] as const) {
    const rows = cluster.query(`select name, id from ${table} where name similar to '${pattern}'`);
    const stored = new Map(rows.map(([name = '', id = '']) => [name, id]));
    assert.equal(stored.size, rows.length, `no ${kind} is there twice`);
    const told = lines.filter(isNamed).filter((line) => line.kind === kind);
    assert.deepEqual(
      told.filter(({ name, id }) => stored.get(name) !== id),
      [],
      `every ${kind} is there`,
    );
    assert.equal(told.length, rows.length, `every ${kind} was acknowledged in the end`);
  }
  const vms = new Set(cluster.query('select id from vms').map(([id]) => id));
  assert.deepEqual(
    lines.filter((line) => line.kind === 'vm').filter(({ id }) => !vms.has(id)),
    [],
  );
  const committed = cluster
    .query('select instance_id, generation, commit_id from generations')
    .map((row) => row.join(' '));
  const told = lines.filter((line) => line.kind === 'commit');
  const of = ({ instance_id, generation, commit_id }: (typeof told)[number]) =>
    `${instance_id} ${generation} ${commit_id}`;
  assert.deepEqual(told.map(of).sort(), committed.sort(), 'the generations are the acknowledged ones');
  const flushed = cluster.query(
    `select instance_id, data -> 'flush' ->> 'generation', count(*) from events where type = 'disk.flushed' group by 1, 2`,
  );
  assert.equal(flushed.length, told.length);
  assert.deepEqual(
    flushed.filter(([, , count]) => count !== '1'),
    [],
    'each is told once',
  );
}

test(
  'no acknowledged write is missing or there twice after the leader was killed, stopped or cut off',
  only,
  async (t) => {
    const cluster = await PatroniCluster.start();
    t.after(() => cluster.close());
    const load = startLoad(t, cluster);
    await until('it is ready', () => load.lines.some(({ kind }) => kind === 'ready'));
    for (let round = 0; round < ROUNDS; round++) {
      for (const fault of FAULTS) {
        t.diagnostic(`leader ${fault}: ${await failOver(cluster, load, fault)}`);
      }
    }
    await load.end();
    const failures = load.lines.filter((line) => line.kind === 'failure');
    t.diagnostic(
      `${load.lines.filter(isWrite).length} writes acknowledged, ${failures.length} attempts failed`,
    );
    t.diagnostic(
      `the longest failed attempt took ${(Math.max(...failures.map(({ took_ms }) => took_ms)) / 1000).toFixed(1)} s`,
    );
    assert.deepEqual(
      load.lines.filter(({ kind }) => kind === 'wrong'),
      [],
    );
    check(cluster, load.lines);
  },
);
