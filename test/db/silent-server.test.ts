/** A server that stops answering without closing its connections: each kind of connection is replaced. */
import assert from 'node:assert/strict';
import { after, before, type TestContext, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { sql } from 'kysely';
import { pino } from 'pino';
import { NotifyHub, notify } from '../../src/db/notify.ts';
import { isUnavailable, NO_ANSWER_MS, openPool } from '../../src/db/pool.ts';
import { CuttableWay } from '../support/cuttable.ts';
import { startDatabase, type TestDatabase } from '../support/database.ts';
import { until, untilWorks } from '../support/waiting.ts';

const log = pino({ level: 'silent' });
let database: TestDatabase;
before(async () => {
  database = await startDatabase();
});
after(() => database.close());

async function openWay(t: TestContext): Promise<CuttableWay> {
  const way = await CuttableWay.open(database);
  t.after(() => way.close());
  return way;
}

test('LISTEN: waiters are woken, and get later notifications', async (t) => {
  const way = await openWay(t);
  const db = openPool(database.url, () => undefined, 1);
  const hub = new NotifyHub(way.url, log, { every: 300, answer: 200 });
  t.after(async () => {
    await hub.stop();
    await db.destroy();
  });
  let woken = 0;
  hub.subscribe('events', '', () => woken++);
  hub.start();
  await until('it listens', () => woken > 0);
  const before_silence = woken;
  way.silence();
  await until('it listens again', () => woken > before_silence);
  const before_news = woken;
  await notify(db, 'events');
  await until('it hears', () => woken > before_news);
});

test('the pool: the statement fails as unavailable, and the next one gets another connection', async (t) => {
  const way = await openWay(t);
  const db = openPool(way.url, () => undefined, 1);
  t.after(() => db.destroy());
  await sql`select 1`.execute(db);
  way.silence();
  t.mock.timers.enable({ apis: ['setTimeout'] });
  let over = false;
  const unanswered = assert.rejects(sql`select 2`.execute(db), isUnavailable).finally(() => {
    over = true;
  });
  // It may not be under way at once.
  while (!over) {
    t.mock.timers.tick(NO_ANSWER_MS);
    await turn();
  }
  await unanswered;
  t.mock.timers.reset();
  await untilWorks('the next is answered', () => sql`select 3`.execute(db));
});
