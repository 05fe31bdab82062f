/** Transactions, and how statements reach PostgreSQL. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { setImmediate } from 'node:timers/promises';
import { CompiledQuery, sql } from 'kysely';
import pg from 'pg';
import { Batched } from '../../src/db/batched.ts';
import { blindTransaction } from '../../src/db/blind-writes.ts';
import { lookUp } from '../../src/db/look-up.ts';
import { notify } from '../../src/db/notify.ts';
import {
  atCommit,
  type Db,
  isUnavailable,
  openPool,
  poolOf,
  sqlStateOf,
  transaction,
} from '../../src/db/pool.ts';
import { PLANNED_EACH_TIME } from '../../src/db/statement-names.ts';
import { startDatabase } from '../support/database.ts';

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

test('what is to go with COMMIT comes after the rest, in its order, and is committed with it', async () => {
  await clear();
  await transaction(pool, async (tx) => {
    await atCommit(tx, CompiledQuery.raw(`update notes set text = text || ' b'`, []));
    await atCommit(tx, CompiledQuery.raw(`update notes set text = text || ' c'`, []));
    await tx.executeQuery(insert(1, 'a'));
    assert.deepEqual(await notes(), [], 'nobody sees it yet');
  });
  assert.deepEqual(await notes(), ['a b c']);
});

test('when it fails nothing is committed, the caller hears why, and the connection goes on', async () => {
  await clear();
  for (let round = 0; round < 4; round++) {
    const failing = transaction(pool, async (tx) => {
      await tx.executeQuery(insert(1, 'first'));
      await atCommit(tx, insert(1, 'again'));
      await atCommit(tx, insert(2, 'after'));
    });
    await assert.rejects(failing, (error) => sqlStateOf(error) === '23505');
  }
  assert.deepEqual(await notes(), []);
});

test('a transaction of nothing else is one too: all of it, or nothing and the reason as its writer means it', () =>
  withOneConnection(async (one) => {
    for (let round = 0; round < 12; round++) {
      await transaction(one, async (tx) => {
        await atCommit(tx, insert(round * 2, 'a'));
        await atCommit(tx, insert(round * 2 + 1, 'b'));
      });
      const meant = new Error('is there already');
      const failing = transaction(one, async (tx) => {
        await atCommit(tx, insert(1_000, 'before'));
        await atCommit(tx, insert(round * 2, 'again'), (error) =>
          sqlStateOf(error) === '23505' ? meant : error,
        );
        await atCommit(tx, insert(1_001, 'after'));
      });
      await assert.rejects(failing, meant);
    }
    assert.equal((await notes()).length, 24);
    assert.notEqual(await transactionOf(one), await transactionOf(one), 'no transaction is left open');
  }));

test('a value that cannot be sent fails its transaction before anything of it is sent', () =>
  withOneConnection(async (one) => {
    const circular: Record<string, unknown> = {};
    circular['itself'] = circular;
    for (const first of [insert(1, 'a'), insert(2, 'b')]) {
      const failing = transaction(one, async (tx) => {
        await atCommit(tx, first);
        await atCommit(tx, CompiledQuery.raw('insert into notes values (9, $1)', [circular]));
      });
      await assert.rejects(failing, /circular/);
    }
    assert.deepEqual(await notes(), []);
    await one.executeQuery(insert(3, 'goes on'));
    assert.deepEqual(await notes(), ['goes on']);
  }));

test('blind transactions of one moment go together; one that fails fails alone', () =>
  withOneConnection(async (one) => {
    for (let round = 0; round < 12; round++) {
      const base = round * 100;
      const outcomes = await Promise.allSettled(
        Array.from({ length: 30 }, (_, n) =>
          blindTransaction(one, async (tx) => {
            await atCommit(tx, insert(base + n, 'first'));
            // Each third repeats its own row.
            await atCommit(tx, insert(n % 3 === 0 ? base + n : base + 50 + n, 'second'), (error) =>
              sqlStateOf(error) === '23505' ? new Error(`meant ${n}`) : error,
            );
            return n;
          }),
        ),
      );
      for (const [n, outcome] of outcomes.entries()) {
        if (n % 3 !== 0) assert.deepEqual(outcome, { status: 'fulfilled', value: n });
        else assert.match(String(outcome.status === 'rejected' && outcome.reason), new RegExp(`meant ${n}$`));
      }
    }
    const { rows } = await sql<{ count: number }>`
      select count(*) from notes`.execute(one);
    assert.equal(rows[0]?.count, 12 * 40);
  }));

test('blind transactions share their COMMIT, and one that asks something is refused', () =>
  withOneConnection(async (one) => {
    await Promise.all(
      Array.from({ length: 40 }, (_, n) => blindTransaction(one, (tx) => atCommit(tx, insert(n, 'x')))),
    );
    const { rows } = await sql<{ transactions: number }>`
      select count(distinct xmin::text) as transactions from notes`.execute(one);
    assert.ok((rows[0]?.transactions ?? 40) <= 3, `${rows[0]?.transactions} transactions`);
    await assert.rejects(
      blindTransaction(one, (tx) => notes(tx as Db)),
      /connected to nothing/,
    );
  }));

test('a blind transaction that PostgreSQL asks for again is tried again, as any other', () =>
  withOneConnection(async (one) => {
    await clear();
    await sql`create sequence tries`.execute(one);
    await sql`create function fail_until(n int) returns void language plpgsql as $$ begin
      if nextval('tries') < n then raise exception 'again' using errcode = '40001'; end if; end $$`.execute(
      one,
    );
    const failing = (n: number) => CompiledQuery.raw('select fail_until($1)', [n]);
    await blindTransaction(one, async (tx) => {
      await atCommit(tx, insert(1, 'made'));
      await atCommit(tx, failing(3));
    });
    assert.deepEqual(await notes(one), ['made'], 'once');
    const never = blindTransaction(one, (tx) => atCommit(tx, failing(1_000)));
    await assert.rejects(never, (error) => sqlStateOf(error) === '40001');
  }));

test('a blind transaction whose connection breaks fails, and is not sent again', async () => {
  await clear();
  const one = openPool(database.url, () => undefined, 2);
  try {
    const ends = CompiledQuery.raw('select pg_terminate_backend(pg_backend_pid())');
    const outcomes = await Promise.allSettled(
      [ends, insert(1, 'a'), insert(2, 'b')].map((statement) =>
        blindTransaction(one, (tx) => atCommit(tx, statement)),
      ),
    );
    assert.equal(outcomes[0]?.status, 'rejected');
    const failed = outcomes.filter(({ status }) => status === 'rejected').length;
    assert.equal((await notes()).length, 3 - failed);
    await blindTransaction(one, (tx) => atCommit(tx, insert(3, 'goes on')));
  } finally {
    await one.destroy();
  }
});

test('a hint to look again goes with COMMIT, and is not lost or doubled by what is sent beside it', async () => {
  await clear();
  const listener = new pg.Client({ connectionString: database.url });
  await listener.connect();
  const heard: string[] = [];
  listener.on('notification', ({ payload }) => heard.push(payload ?? ''));
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
  assert.deepEqual(heard, ['instance:one', 'instance:two']);
  await listener.end();
});

/** A pool of one connection, on which BEGIN waits for the first statement. */
async function withOneConnection(use: (one: Db) => Promise<void>): Promise<void> {
  const one = openPool(database.url, () => undefined, 1);
  try {
    await clear();
    await transaction(one, transactionOf);
    await use(one);
  } finally {
    await one.destroy();
  }
}
/** That of the connection's statement now. */
const transactionOf = async (db: Db) => {
  const { rows } = await sql<{ id: string }>`select pg_current_xact_id()::text as id`.execute(db);
  return rows[0]?.id;
};

test('BEGIN goes with the first statement, whatever that is, and all that follow are of its transaction', () =>
  withOneConnection(async (one) => {
    for (let round = 0; round < 12; round++) {
      const ids = await transaction(one, async (tx) => [await transactionOf(tx), await transactionOf(tx)]);
      assert.equal(ids[0], ids[1]);
      await transaction(one, (tx) => tx.executeQuery(insert(round, `${round}`)));
    }
    const undone = transaction(one, async (tx) => {
      await sql`delete from notes`.execute(tx);
      throw new Error('no');
    });
    await assert.rejects(undone, /no/);
    assert.equal((await notes()).length, 12);
    await transaction(one, async () => undefined);
    assert.notEqual(await transactionOf(one), await transactionOf(one), 'no transaction is left open');
  }));

test('a first statement that fails leaves no transaction open, and is prepared the next time', () =>
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
    await sql`deallocate all`.execute(one);
    const failing = transaction(one, (tx) =>
      tx.executeQuery(CompiledQuery.raw(`insert into notes values (1, 'a')`)),
    );
    await assert.rejects(failing, (error) => sqlStateOf(error) === '26000');
    assert.deepEqual(await notes(), []);
  }));

test('an error says who asked: for one statement, for several, and where an answer cannot be read', async () => {
  const client = await poolOf(pool).connect();
  async function whoAsks(text: string, values: unknown[] = []) {
    await client.query(text, values);
  }
  const saysWho = (error: unknown) => /whoAsks/.test((error as Error).stack ?? '');
  try {
    await assert.rejects(whoAsks('select 1 / 0'), saysWho);
    await assert.rejects(whoAsks('select 1 / $1::int', [0]), saysWho);
    await assert.rejects(whoAsks('select 9007199254740993::bigint as n'), saysWho);
    await client.query('begin');
    await assert.rejects(whoAsks('select 1 / $1::int', [0]), saysWho);
    await client.query('rollback');
  } finally {
    client.release();
  }
});

test('look-ups asked for at one time go out together, and each has its own answer or error', () =>
  withOneConnection(async (one) => {
    const pid = CompiledQuery.raw('select pg_backend_pid() as pid, now()::text as at');
    const asked = [pid, CompiledQuery.raw('select 1 / $1::int as never', [0]), pid];
    const [first, failed, last] = await Promise.allSettled(asked.map((each) => lookUp(one, each)));
    assert(first?.status === 'fulfilled' && last?.status === 'fulfilled');
    assert.equal(first.value.length, 1);
    assert(failed?.status === 'rejected' && sqlStateOf(failed.reason) === '22012');
    assert.notDeepEqual(first.value, last.value, 'no transaction');
  }));

test('a look-up that gets no connection fails', async () => {
  const nowhere = openPool('postgresql://berth@/berth?host=/nowhere', () => undefined, 1);
  const asked = [1, 2].map(() => lookUp(nowhere, CompiledQuery.raw('select 1')));
  for (const outcome of await Promise.allSettled(asked)) {
    assert(outcome.status === 'rejected' && isUnavailable(outcome.reason));
  }
  await nowhere.destroy();
});

test('a transaction that throws sends nothing of it', async () => {
  await clear();
  const thrown = new Error('no');
  const failing = transaction(pool, async (tx) => {
    await atCommit(tx, insert(1, 'never'));
    throw thrown;
  });
  await assert.rejects(failing, thrown);
  assert.deepEqual(await notes(), []);
});

test('a deadlock among such statements is tried again, with those of the new try alone', async () => {
  await clear();
  await sql`insert into notes values (1, ''), (2, '')`.execute(pool);
  const touch = (id: number, by: string) =>
    CompiledQuery.raw('update notes set text = text || $1 where id = $2', [by, id]);
  let both = Promise.withResolvers<void>();
  let waiting = 0;
  const cross = (first: number, second: number, by: string) =>
    transaction(pool, async (tx) => {
      await tx.executeQuery(touch(first, by));
      waiting += 1;
      if (waiting === 2) both.resolve();
      await both.promise;
      await atCommit(tx, touch(second, by));
    });
  await Promise.all([cross(1, 2, 'x'), cross(2, 1, 'y')]);
  both = Promise.withResolvers();
  for (const text of await notes()) assert.equal([...String(text)].sort().join(''), 'xy');
});

test('a statement that comes again is prepared once a connection, and no more than 200 are', async () => {
  const one = openPool(database.url, () => undefined, 1);
  const prepared = async () => {
    const { rows } = await sql<{ statement: string }>`select statement from pg_prepared_statements`.execute(
      one,
    );
    return rows.map(({ statement }) => statement);
  };
  try {
    for (let times = 0; times < 30; times++) await sql`select ${times}::int as often`.execute(one);
    await sql`select ${1}::int as once`.execute(one);
    const anew = CompiledQuery.raw(`${PLANNED_EACH_TIME} select $1::int as anew`, [1]);
    for (let times = 0; times < 30; times++) await one.executeQuery(anew);
    assert.deepEqual(await prepared(), ['select $1::int as often']);
    for (let text = 0; text < 250; text++) {
      for (let times = 0; times < 10; times++)
        await sql`select ${1}::int as ${sql.ref(`c${text}`)}`.execute(one);
    }
    assert.equal((await prepared()).length, 200);
  } finally {
    await one.destroy();
  }
});

test('a table altered under a prepared statement fails it once at most, and then it is served', async () => {
  const one = openPool(database.url, () => undefined, 1);
  try {
    const read = () => sql`select * from notes where id > ${0}`.execute(one);
    for (let times = 0; times < 20; times++) await read();
    await sql`alter table notes add column more int`.execute(pool);
    await read().catch(() => undefined);
    for (let times = 0; times < 20; times++) await read();
  } finally {
    await one.destroy();
    await sql`alter table notes drop column more`.execute(pool);
  }
});

test('look-ups of one moment go together, those asked for meanwhile in the next, each begun after it was asked for', async () => {
  const asked: (readonly string[])[] = [];
  const gates: (() => void)[] = [];
  const batched = new Batched(async (keys) => {
    asked.push(keys);
    await new Promise<void>((resolve) => gates.push(resolve));
    return new Map(keys.filter((key) => key !== 'nobody').map((key) => [key, `found ${key}`]));
  });
  const first = ['a', 'nobody'].map((key) => batched.find(key));
  await setImmediate();
  const others = ['a', 'b', 'b', 'nobody'].map((key) => batched.find(key));
  gates.shift()?.();
  assert.deepEqual(await Promise.all(first), ['found a', undefined]);
  gates.shift()?.();
  assert.deepEqual(await Promise.all(others), ['found a', 'found b', 'found b', undefined]);
  assert.deepEqual(
    asked,
    [
      ['a', 'nobody'],
      ['a', 'b', 'nobody'],
    ],
    'the second a was not answered from the first',
  );
});

test('a look-up that fails fails those who wait for it, and no later one', async () => {
  let broken = true;
  const batched = new Batched(async (keys) => {
    if (broken) throw new Error('away');
    return new Map(keys.map((key) => [key, key]));
  });
  await assert.rejects(batched.find('a'), /away/);
  broken = false;
  assert.equal(await batched.find('a'), 'a');
  const many = Array.from({ length: 300 }, (_, index) => String(index));
  assert.deepEqual(await Promise.all(many.map((key) => batched.find(key))), many);
});
