import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { sql } from 'kysely';
import { type Db, openPool, type Tx, transaction } from '../../src/db/pool.ts';
import { append, appendPrivate } from '../../src/events/append.ts';
import { type NumberedEvent, type PlacedEvent, readEvents, takeSettled } from '../../src/events/store.ts';
import { onCommitted } from '../../src/events/wake.ts';
import { newId } from '../../src/lib/ids.ts';
import { dispatchEvents } from '../../src/tasks/dispatch-events.ts';
import { startDatabase, type TestDatabase } from '../support/database.ts';

const org_id = newId('org');
let database: TestDatabase;
let db: Db;

before(async () => {
  database = await startDatabase();
  db = openPool(database.url, () => undefined);
});
after(async () => {
  await db.destroy();
  await database.close();
});

function happen(tx: Tx, n: number) {
  return append(tx, { org_id, type: 'member.added', data: { n }, actor: 'system' });
}

const keepIn = (seen: NumberedEvent[]) => async (tx: Tx, events: readonly PlacedEvent[]) => {
  seen.push(...(await readEvents(tx, events)));
};

test('each event is handed over once, in the order in which they were written', async () => {
  const seen: NumberedEvent[] = [];
  let early: (() => void) | undefined;
  const open = transaction(db, async (tx) => {
    await happen(tx, 1);
    await new Promise<void>((resolve) => {
      early = resolve;
    });
  });
  await transaction(db, (tx) => happen(tx, 2));
  await dispatchEvents(db, [keepIn(seen)]);
  assert.deepEqual(seen, [], 'the second waits for the first, which was written before and is not committed');
  early?.();
  await open;
  await dispatchEvents(db, [keepIn(seen)]);
  assert.deepEqual(
    seen.map(({ data, position }) => ({ data, position })),
    [
      { data: { n: 1 }, position: 1 },
      { data: { n: 2 }, position: 2 },
    ],
  );
});

test('of many dispatchers at once each event reaches one, without a gap in the positions', async () => {
  const seen: NumberedEvent[] = [];
  await Promise.all(Array.from({ length: 200 }, (_, n) => transaction(db, (tx) => happen(tx, n))));
  await Promise.all(Array.from({ length: 8 }, () => dispatchEvents(db, [keepIn(seen)])));
  await dispatchEvents(db, [keepIn(seen)]);
  assert.equal(seen.length, 200);
  assert.equal(new Set(seen.map(({ id }) => id)).size, 200);
  const positions = seen.map(({ position }) => position);
  assert.deepEqual(
    positions,
    Array.from({ length: 200 }, (_, i) => i + 3),
  );
});

test('a consumer that fails leaves its batch for the next time', async () => {
  await transaction(db, (tx) =>
    appendPrivate(tx, {
      org_id: null,
      user_id: newId('usr'),
      type: 'account.locked',
      data: {},
      actor: 'system',
    }),
  );
  await assert.rejects(
    dispatchEvents(db, [
      async () => {
        throw new Error('no');
      },
    ]),
    /no/,
  );
  const seen: NumberedEvent[] = [];
  await dispatchEvents(db, [keepIn(seen)]);
  assert.deepEqual(
    seen.map(({ type }) => type),
    ['account.locked'],
  );
});

test('a commit wakes the dispatcher of its process, a rollback does not', async () => {
  let woken = 0;
  const undo = onCommitted(() => {
    woken += 1;
  });
  await assert.rejects(
    transaction(db, async (tx) => {
      await happen(tx, 1);
      throw new Error('rolled back');
    }),
    /rolled back/,
  );
  assert.equal(woken, 0);
  await transaction(db, (tx) => happen(tx, 2));
  assert.equal(woken, 1);
  undo();
});

test('what is settled is found by reading those events alone, whatever the planner knows of how many wait', async () => {
  await transaction(db, async (tx) => {
    for (let n = 0; n < 200; n++) await happen(tx, n);
  });
  await dispatchEvents(db, []);
  await sql`analyze events`.execute(db);
  await transaction(db, async (tx) => {
    for (let n = 0; n < 1_000; n++) await happen(tx, n);
  });
  const read = await transaction(db, async (tx) => {
    const before = await tuplesRead(tx);
    assert.equal((await takeSettled(tx, 100))?.events.length, 100);
    return (await tuplesRead(tx)) - before;
  });
  assert.ok(read < 1_000, `${read} rows were read for 100 events`);
  await dispatchEvents(db, []);
});

/** Of events, in this transaction. */
async function tuplesRead(tx: Tx): Promise<number> {
  const { rows } = await sql<{ tuples: number }>`
    select seq_tup_read + idx_tup_fetch as tuples from pg_stat_xact_user_tables where relname = 'events'`.execute(
    tx,
  );
  return Number(rows[0]?.tuples ?? 0);
}
