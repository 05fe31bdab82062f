/** DATABASE_URL with two servers, of which one takes writes; which one changes, or falls silent. */
import assert from 'node:assert/strict';
import { after, before, beforeEach, test } from 'node:test';
import { sql } from 'kysely';
import { pino } from 'pino';
import { connect, findServer } from '../../src/control-plane/db/connect.ts';
import { NotifyHub } from '../../src/control-plane/db/notify.ts';
import { type Db, isUnavailable, openPool, poolState } from '../../src/control-plane/db/pool.ts';
import { queryOnce, startDatabase, type TestDatabase } from '../support/database.ts';
import { DatabaseProxy } from '../support/database-proxy.ts';
import { ownPort } from '../support/own-ports.ts';
import { until, untilWorks } from '../support/waiting.ts';

interface Server {
  readonly database: TestDatabase;
  readonly proxy: DatabaseProxy;
}

let one: Server;
let two: Server;
let both = '';

/** Its sessions take no writes any more; a standby says the same. */
async function setWritable({ database }: Server, writable: boolean): Promise<void> {
  await queryOnce(
    database.url,
    `alter system set default_transaction_read_only = ${writable ? 'off' : 'on'}`,
  );
  await queryOnce(database.url, 'select pg_reload_conf()');
  const shown = async () =>
    (await queryOnce<Record<string, string>>(database.url, 'show default_transaction_read_only'))[0];
  await until('it is set', async () => Object.values((await shown()) ?? {})[0] === (writable ? 'off' : 'on'));
}

before(async () => {
  const start = async (): Promise<Server> => {
    // Of the same name on both servers.
    const made = await startDatabase({ own_server: true });
    const url = new URL(made.url);
    url.pathname = '/postgres';
    const database = { ...made, url: url.href };
    await queryOnce(database.url, 'create table notes (text text)');
    return { database, proxy: await DatabaseProxy.open(database, await ownPort()) };
  };
  [one, two] = await Promise.all([start(), start()]);
  const { pathname, username } = new URL(one.proxy.url);
  const hosts = [one, two].map(({ proxy }) => new URL(proxy.url).host).join();
  both = `postgresql://${username}@${hosts}${pathname}?target_session_attrs=read-write`;
});
after(async () => {
  for (const { proxy, database } of [one, two]) {
    await proxy.close();
    await database.close();
  }
});
beforeEach(async () => {
  for (const { proxy } of [one, two]) {
    await proxy.cut();
    await proxy.restore();
  }
  await setWritable(one, true);
  await setWritable(two, false);
});

async function withPool(work: (db: Db) => Promise<void>): Promise<void> {
  const db = openPool(both, () => undefined, 4);
  try {
    await work(db);
  } finally {
    await db.destroy();
  }
}
const write = (db: Db, text: string) => sql`insert into notes values (${text})`.execute(db);
const written = async ({ database }: Server) =>
  (await queryOnce<{ text: string }>(database.url, 'select text from notes order by 1')).map(
    ({ text }) => text,
  );

test('the server that takes writes is used, wherever it stands in the list', () =>
  withPool(async (db) => {
    await write(db, 'to the first');
    await setWritable(one, false);
    await setWritable(two, true);
    await assert.rejects(write(db, 'to a standby'), isUnavailable);
    await untilWorks('the next leads to the other', () => write(db, 'to the second'));
    assert.deepEqual([await written(one), await written(two)], [['to the first'], ['to the second']]);
    assert.equal(poolState(db).used, 0);
  }));

test('while another server takes writes, a silent one delays nobody', async () => {
  await setWritable(two, true);
  one.proxy.silence();
  const client = await connect(both);
  assert.equal((await client.query('select 1 as n')).rows[0]?.n, 1);
  await client.end();
  assert.equal((await findServer(both)).url, two.proxy.url);
});

test('a statement on a server that falls silent fails soon, and the next one goes to the new leader', () =>
  withPool(async (db) => {
    await sql`select 1`.execute(db);
    one.proxy.silence();
    await setWritable(two, true);
    await assert.rejects(sql`select 2`.execute(db), isUnavailable);
    await write(db, 'after the silence');
    assert.ok((await written(two)).includes('after the silence'));
  }));

test('a slow statement on a server that answers goes on', () =>
  withPool(async (db) => {
    // Longer than the time after which the server is asked again.
    await sql`select pg_sleep(4)`.execute(db);
  }));

test('LISTEN moves to the new leader, and wakes the waiters', async (t) => {
  const hub = new NotifyHub(both, pino({ level: 'silent' }), { every: 200, answer: 200 });
  t.after(() => hub.stop());
  let woken = 0;
  hub.subscribe('events', '', () => woken++);
  hub.start();
  await until('it listens', () => woken === 1);
  one.proxy.silence();
  await setWritable(two, true);
  await until('it listens again', () => woken === 2);
  await queryOnce(two.database.url, "select pg_notify('berth', 'events:')");
  await until('it is told', () => woken === 3);
});

test('without a server that takes writes everything fails as unavailable, and names each', async () => {
  await setWritable(one, false);
  await two.proxy.cut();
  const refusal = (error: unknown) => {
    assert(isUnavailable(error) && error instanceof Error);
    assert.match(
      error.message,
      /^no database server takes writes \(127.*: the database server takes no writes; 127.*ECONNREFUSED/,
    );
    return true;
  };
  await assert.rejects(connect(both), refusal);
  await withPool(async (db) => assert.rejects(sql`select 1`.execute(db), refusal));
  await assert.rejects(connect(one.proxy.url), {
    name: 'NoServerError',
    message: 'the database server takes no writes',
  });
});
