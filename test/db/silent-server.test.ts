/** A server that stops answering without closing its connections: each kind of connection is replaced. */
import assert from 'node:assert/strict';
import { after, before, type TestContext, test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { sql } from 'kysely';
import { pino } from 'pino';
import { NO_ANSWER_MS } from '../../src/control-plane/db/connect.ts';
import { NotifyHub, notify } from '../../src/control-plane/db/notify.ts';
import { isNoAnswer, isUnavailable, openPool } from '../../src/control-plane/db/pool.ts';
import { startDatabase, type TestDatabase } from '../support/database.ts';
import { DatabaseProxy } from '../support/database-proxy.ts';
import { until, untilWorks } from '../support/waiting.ts';

const log = pino({ level: 'silent' });
let database: TestDatabase;
before(async () => {
  database = await startDatabase();
});
after(() => database.close());

async function openProxy(t: TestContext): Promise<DatabaseProxy> {
  const proxy = await DatabaseProxy.open(database);
  t.after(() => proxy.close());
  return proxy;
}

test('LISTEN: waiters are woken, and get later notifications', async (t) => {
  const proxy = await openProxy(t);
  const db = openPool(database.url, () => undefined, 1);
  const hub = new NotifyHub(proxy.url, log, { every: 300, answer: 200 });
  t.after(async () => {
    await hub.stop();
    await db.destroy();
  });
  let woken = 0;
  hub.subscribe('events', '', () => woken++);
  hub.start();
  await until('it listens', () => woken > 0);
  const before_stall = woken;
  proxy.stall();
  await until('it listens again', () => woken > before_stall);
  const before_notification = woken;
  await notify(db, 'events');
  await until('the waiter is woken', () => woken > before_notification);
});

test('the pool: the statement fails as unavailable, and the next one gets another connection', async (t) => {
  const proxy = await openProxy(t);
  const db = openPool(proxy.url, () => undefined, 1);
  t.after(() => db.destroy());
  await sql`select 1`.execute(db);
  proxy.stall();
  t.mock.timers.enable({ apis: ['setTimeout'] });
  let over = false;
  const unanswered = assert
    .rejects(sql`select 2`.execute(db), (error) => isNoAnswer(error) && isUnavailable(error))
    .finally(() => {
      over = true;
    });
  // The statement may not be sent at once.
  while (!over) {
    // Small steps: the pool's own timer for a connection must not fire first.
    t.mock.timers.tick(NO_ANSWER_MS / 600);
    await turn();
  }
  await unanswered;
  t.mock.timers.reset();
  const began = performance.now();
  await untilWorks('the next is answered', () => sql`select 3`.execute(db));
  assert(performance.now() - began < NO_ANSWER_MS / 2, 'not on the connection without an answer');
});
