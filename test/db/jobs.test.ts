import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { pino } from 'pino';
import { addJobs, migrateJobs } from '../../src/db/jobs.ts';
import { type Db, openPool } from '../../src/db/pool.ts';
import { runJobs } from '../../src/db/run-jobs.ts';
import { CuttableWay } from '../support/cuttable.ts';
import { startDatabase, type TestDatabase } from '../support/database.ts';
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
      await way.cut();
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
