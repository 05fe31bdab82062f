import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import pg from 'pg';
import { pino } from 'pino';
import { type Db, openPool } from '../../src/db/pool.ts';
import { JobsPool } from '../../src/jobs/jobs-pool.ts';
import { runJobs } from '../../src/jobs/run-jobs.ts';
import { addJobs, migrateJobs } from '../../src/jobs/store.ts';
import { CuttableWay } from '../support/cuttable.ts';
import { queryOnce, startDatabase, type TestDatabase } from '../support/database.ts';
import { until } from '../support/waiting.ts';

let database: TestDatabase;
let db: Db;
/** What the library has complained of. */
const complaints: string[] = [];
const log = pino({ level: 'warn' }, { write: (line: string) => void complaints.push(line) });
const rejections: unknown[] = [];
const onRejection = (reason: unknown) => void rejections.push(reason);

before(async () => {
  process.on('unhandledRejection', onRejection);
  database = await startDatabase();
  db = openPool(database.url, () => undefined);
  await migrateJobs(database.url);
});
after(async () => {
  process.off('unhandledRejection', onRejection);
  await db.destroy();
  await database.close();
});

/** A runner over a way that can be cut, with a job that waits to be let go. */
async function runOne(name: string) {
  const way = await CuttableWay.open(database);
  const stop = new AbortController();
  const begun = Promise.withResolvers<void>();
  const ended = Promise.withResolvers<void>();
  const ran: unknown[] = [];
  const work = async (payload: unknown) => {
    ran.push(payload);
    begun.resolve();
    await ended.promise;
  };
  const running = runJobs(way.url, [{ name, slots: 2, work }], log, stop.signal);
  await addJobs(db, [{ task: name, key: name, payload: { n: 1 } }]);
  await begun.promise;
  return {
    way,
    ran,
    /** Cuts the way, then lets the job end. */
    endWhileCut: async () => {
      await way.cut();
      ended.resolve();
    },
    abort: () => stop.abort(),
    stop: async () => {
      stop.abort();
      await running;
      await way.close();
    },
  };
}

const waiting = async (task: string) =>
  db
    .selectFrom('graphile_worker.jobs' as never)
    .selectAll()
    .where('task_identifier' as never, '=', task as never)
    .execute();

test('a job whose end cannot be written ends no process, and the runner goes on once the database is back', async () => {
  const one = await runOne('cut');
  await one.endWhileCut();
  await addJobs(db, [{ task: 'cut', key: 'another', payload: { n: 2 } }]);
  await one.way.mend();
  await until('the next job has run', async () => one.ran.length === 2);
  await until('both are written off', async () => (await waiting('cut')).length === 0);
  await one.stop();
  assert.deepEqual(rejections, []);
});

test('a stop while the database is away ends, and leaves the job', async () => {
  const one = await runOne('stopped');
  await one.endWhileCut();
  await one.stop();
  assert.deepEqual(rejections, []);
  assert.equal((await waiting('stopped')).length, 1);
});

test('a stop while the database has been away for long ends too', async () => {
  const one = await runOne('late');
  complaints.length = 0;
  await one.endWhileCut();
  const reconnected = () => complaints.filter((line) => line.includes('notify listener')).length > 4;
  await until('the library has tried to reconnect', reconnected);
  await one.stop();
  assert.deepEqual(rejections, []);
  assert.equal((await waiting('late')).length, 1);
});

test('a server that goes down while the connections of the migration end ends no process', async () => {
  const way = await CuttableWay.open(database);
  const fields = Buffer.from(
    'SFATAL\0C57P01\0Mterminating connection due to administrator command\0\0',
    'latin1',
  );
  const head = Buffer.from('E\0\0\0\0', 'latin1');
  head.writeInt32BE(4 + fields.length, 1);
  way.last_word = Buffer.concat([head, fields]);
  await migrateJobs(way.url);
  await until('every connection has ended', async () => way.open_connections === 0);
  await way.close();
});

/** As the library takes the one that it listens on. */
function take(pool: JobsPool): Promise<() => void> {
  return new Promise((resolve, reject) => {
    pool.connect((error, _client, release) => {
      if (error || !release) reject(error);
      else resolve(() => release());
    });
  });
}

test('a connection that the library gives back twice goes back once', async () => {
  const pool = new JobsPool(database.url, 1);
  const giveBack = await take(pool);
  giveBack();
  giveBack();
  assert.deepEqual((await pool.query('select 1 as one')).rows, [{ one: 1 }]);
  await pool.end();
});

test('a pool ends with what is still lent, takes it back then as well, and answers nothing more', async () => {
  const pool = new JobsPool(database.url, 2);
  const giveBack = await take(pool);
  const client = await pool.connect();
  const answers: unknown[] = [];
  const ask = (text: string) => {
    // What fails and is heard by nobody would end the process.
    void client.query(text).then((answer) => answers.push(answer));
  };
  ask('select pg_sleep(600)');
  const ended = new Promise((resolve) => client.once('end', resolve));
  await pool.end();
  ask('select 1');
  await ended;
  giveBack();
  client.release();
  assert.equal(pool.totalCount, 0);
  await new Promise(setImmediate);
  assert.deepEqual([answers, rejections], [[], []]);
});

test('a job that a worker takes in this very moment is joined by a new one, not lost', async () => {
  const job = { task: 'taken', key: 'taken', payload: { n: 1 } };
  await addJobs(db, [job]);
  const worker = new pg.Client({ connectionString: database.url });
  await worker.connect();
  try {
    // As a worker takes it, its commit still to come.
    await worker.query('begin');
    const taken = await worker.query(
      "update graphile_worker._private_jobs set attempts = attempts + 1, locked_at = now(), locked_by = 'w' where key = 'taken'",
    );
    assert.equal(taken.rowCount, 1);
    const added = addJobs(db, [{ ...job, payload: { n: 2 } }]);
    const { rows } = await worker.query('select pg_backend_pid() as pid');
    const blocked =
      "select from pg_stat_activity where $1::int = any(pg_blocking_pids(pid)) and query like '%add_jobs%'";
    await until('the addition waits for the worker', async () => {
      const found = await queryOnce(database.url, blocked, [rows[0].pid]);
      return found.length === 1;
    });
    await worker.query('commit');
    await added;
  } finally {
    await worker.end();
  }
  const left = await queryOnce<{ payload: { n: number }; locked: boolean }>(
    database.url,
    `select j.payload, j.locked_at is not null as locked from graphile_worker._private_jobs j
     join graphile_worker._private_tasks t on t.id = j.task_id where t.identifier = 'taken' order by j.id`,
  );
  assert.deepEqual(left, [
    { payload: { n: 1 }, locked: true },
    { payload: { n: 2 }, locked: false },
  ]);
});
