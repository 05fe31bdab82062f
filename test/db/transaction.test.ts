/** Transactions, and how statements reach PostgreSQL. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { CompiledQuery, sql } from 'kysely';
import pg from 'pg';
import { notify } from '../../src/control-plane/db/notify.ts';
import {
  afterCommit,
  type Db,
  isUnavailable,
  openPool,
  ping,
  sqlStateOf,
  transaction,
} from '../../src/control-plane/db/pool.ts';
import { startDatabase } from '../support/database.ts';
import { until } from '../support/waiting.ts';

const database = await startDatabase();
const pool = openPool(database.url, () => undefined, 2);
after(async () => {
  await pool.destroy();
  await database.close();
});
await sql`create table notes (id int primary key, text text)`.execute(pool);

const insert = (id: number, text: string) =>
  CompiledQuery.raw('insert into notes values ($1, $2)', [id, text]);
async function notes(db: Db = pool): Promise<unknown[]> {
  const { rows } = await sql<{ text: string }>`select text from notes order by id`.execute(db);
  return rows.map(({ text }) => text);
}
const clear = () => sql`delete from notes`.execute(pool);

/** A pool of one connection: a transaction left open would show in the next statement. */
async function withOneConnection(use: (one: Db) => Promise<void>): Promise<void> {
  const one = openPool(database.url, () => undefined, 1);
  try {
    await clear();
    await use(one);
  } finally {
    await one.destroy();
  }
}
/** The id of the transaction in which this statement runs. */
const transactionOf = async (db: Db) => {
  const { rows } = await sql<{ id: string }>`select pg_current_xact_id()::text as id`.execute(db);
  return rows[0]?.id;
};

test('a transaction commits all of its statements together', () =>
  withOneConnection(async (one) => {
    for (let round = 0; round < 12; round++) {
      const ids = await transaction(one, async (tx) => {
        await tx.executeQuery(insert(round, `${round}`));
        assert.equal((await notes()).length, round, 'nobody else sees the row before the commit');
        return [await transactionOf(tx), await transactionOf(tx)];
      });
      assert.equal(ids[0], ids[1]);
    }
    assert.equal((await notes()).length, 12);
    await transaction(one, async () => undefined);
    assert.notEqual(await transactionOf(one), await transactionOf(one), 'no transaction is left open');
  }));

test('a transaction that throws commits nothing', () =>
  withOneConnection(async (one) => {
    const thrown = new Error('no');
    const failing = transaction(one, async (tx) => {
      await tx.executeQuery(insert(1, 'never'));
      throw thrown;
    });
    await assert.rejects(failing, thrown);
    assert.deepEqual(await notes(), []);
    assert.notEqual(await transactionOf(one), await transactionOf(one), 'no transaction is left open');
  }));

test('a first statement that fails leaves no transaction open', () =>
  withOneConnection(async (one) => {
    await one.executeQuery(insert(1, 'there'));
    for (let round = 0; round < 12; round++) {
      const failing = transaction(one, (tx) => tx.executeQuery(insert(1, 'again')));
      await assert.rejects(failing, (error) => sqlStateOf(error) === '23505');
      await one.executeQuery(insert(round + 2, 'between'));
    }
    assert.equal((await notes()).length, 13);
  }));

test('a BEGIN that fails takes its first statement with it', () =>
  withOneConnection(async (one) => {
    await sql`begin`.execute(one);
    await assert.rejects(sql`select 1 / 0`.execute(one));
    let began = false;
    const failing = transaction(one, async (tx) => {
      began = true;
      await tx.executeQuery(insert(1, 'a'));
    });
    await assert.rejects(failing, (error) => sqlStateOf(error) === '25P02');
    assert.equal(began, false);
    await sql`rollback`.execute(one);
    assert.deepEqual(await notes(one), []);
  }));

test('statements sent at once are of one transaction: if one fails, none is committed', () =>
  withOneConnection(async (one) => {
    const failing = transaction(one, (tx) =>
      Promise.all([insert(1, 'a'), insert(1, 'again'), insert(2, 'b')].map((each) => tx.executeQuery(each))),
    );
    await assert.rejects(failing, (error) => sqlStateOf(error) === '23505');
    assert.deepEqual(await notes(one), []);
    await transaction(one, (tx) =>
      Promise.all([insert(1, 'a'), insert(2, 'b')].map((each) => tx.executeQuery(each))),
    );
    assert.deepEqual(await notes(one), ['a', 'b']);
  }));

test('a value that cannot be serialised fails its transaction, and the connection stays usable', () =>
  withOneConnection(async (one) => {
    const circular: Record<string, unknown> = {};
    circular['itself'] = circular;
    for (let round = 0; round < 12; round++) {
      const failing = transaction(one, async (tx) => {
        await tx.executeQuery(insert(1, 'a'));
        await tx.executeQuery(CompiledQuery.raw('insert into notes values (9, $1)', [circular]));
      });
      await assert.rejects(failing, /circular/);
    }
    await one.executeQuery(insert(3, 'goes on'));
    assert.deepEqual(await notes(one), ['goes on']);
  }));

test('an effect runs once after the commit, and never after a rollback', async () => {
  await clear();
  const seen: string[] = [];
  const once = () => seen.push('once');
  await transaction(pool, async (tx) => {
    afterCommit(tx, once);
    afterCommit(tx, once);
    assert.deepEqual(seen, [], 'not before the commit');
  });
  const thrown = new Error('no');
  const failing = transaction(pool, async (tx) => {
    afterCommit(tx, () => seen.push('never'));
    throw thrown;
  });
  await assert.rejects(failing, thrown);
  afterCommit(pool, () => seen.push('at once'));
  assert.deepEqual(seen, ['once', 'at once']);
});

test('a notification is sent at the commit, and not after a rollback', async () => {
  await clear();
  const listener = new pg.Client({ connectionString: database.url });
  await listener.connect();
  const received: string[] = [];
  listener.on('notification', ({ payload }) => received.push(payload ?? ''));
  await listener.query('listen berth');
  const thrown = new Error('no');
  const failing = transaction(pool, async (tx) => {
    await notify(tx, 'instance', 'rolled back');
    throw thrown;
  });
  await assert.rejects(failing, thrown);
  await transaction(pool, async (tx) => {
    await notify(tx, 'instance', 'one');
    await tx.executeQuery(insert(1, 'beside'));
    await notify(tx, 'instance', 'two');
  });
  // What was sent before this answer has arrived before it.
  await listener.query('select 1');
  assert.deepEqual(received, ['instance:one', 'instance:two']);
  await listener.end();
});

test('a deadlock is retried, and nothing of the failed attempt is committed', async () => {
  await clear();
  await sql`insert into notes values (1, ''), (2, '')`.execute(pool);
  const append = (id: number, text: string) =>
    CompiledQuery.raw('update notes set text = text || $1 where id = $2', [text, id]);
  const both = Promise.withResolvers<void>();
  let waiting = 0;
  const cross = (first: number, second: number, text: string) =>
    transaction(pool, async (tx) => {
      await tx.executeQuery(append(first, text));
      waiting += 1;
      if (waiting === 2) both.resolve();
      await both.promise;
      await tx.executeQuery(append(second, text));
    });
  await Promise.all([cross(1, 2, 'x'), cross(2, 1, 'y')]);
  for (const text of await notes()) assert.equal([...String(text)].sort().join(''), 'xy');
});

test('a transaction that hangs is rolled back after 5 s', () =>
  withOneConnection(async (one) => {
    const hang = Promise.withResolvers<void>();
    const hung = transaction(one, async (tx) => {
      await tx.executeQuery(insert(1, 'hangs'));
      await hang.promise;
      await tx.executeQuery(insert(2, 'too late'));
    });
    const ended = assert.rejects(hung, isUnavailable);
    const isIdle = async () => {
      const { rows } = await sql`
        select from pg_stat_activity where state = 'idle in transaction' and datname = current_database()`.execute(
        pool,
      );
      return rows.length > 0;
    };
    await until('it hangs', isIdle);
    await until('its session ends', async () => !(await isIdle()), { timeout_ms: 15_000 });
    hang.resolve();
    await ended;
    assert.deepEqual(await notes(), []);
  }));

test('a transaction that waits 5 s for a lock fails as unavailable', () =>
  withOneConnection(async (one) => {
    const holder = new pg.Client({ connectionString: database.url });
    await holder.connect();
    try {
      await holder.query('begin; lock table notes');
      await assert.rejects(
        transaction(one, (tx) => tx.executeQuery(insert(1, 'waits'))),
        isUnavailable,
      );
    } finally {
      await holder.end();
    }
    assert.deepEqual(await notes(), []);
  }));

test('without a connection a statement fails as unavailable', async () => {
  const nowhere = openPool('postgresql://berth@/berth?host=/nowhere', () => undefined, 1);
  await assert.rejects(sql`select 1`.execute(nowhere), isUnavailable);
  await assert.rejects(
    transaction(nowhere, () => Promise.resolve()),
    isUnavailable,
  );
  await nowhere.destroy();
});

test('after the end of its pool a statement fails as unavailable', async () => {
  const db = openPool(database.url, () => undefined);
  await ping(db);
  await db.destroy();
  await assert.rejects(sql`select 1`.execute(db), isUnavailable);
  await assert.rejects(
    transaction(db, (tx) => sql`select 1`.execute(tx)),
    isUnavailable,
  );
});

test('the stack of an error names the caller', async () => {
  async function whoAsks(text: string, values: unknown[] = []) {
    await pool.executeQuery(CompiledQuery.raw(text, values));
  }
  const namesCaller = (error: unknown) => /whoAsks/.test((error as Error).stack ?? '');
  await assert.rejects(whoAsks('select 1 / 0'), namesCaller);
  await assert.rejects(whoAsks('select 1 / $1::int', [0]), namesCaller);
  await assert.rejects(whoAsks('select 9007199254740993::bigint as n'), namesCaller);
});
