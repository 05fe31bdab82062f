import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { sql } from 'kysely';
import { type Db, openPool, type Tx, transaction } from '../../src/control-plane/db/pool.ts';
import { append, appendPrivate, dispatchEvents, onCommitted } from '../../src/control-plane/events/append.ts';
import {
  deleteOldEvents,
  type NumberedEvent,
  numberEvents,
  type PlacedEvent,
  readEvents,
} from '../../src/control-plane/events/store.ts';
import { inParallel } from '../../src/shared/concurrency.ts';
import { type EventId, type InstanceId, newId } from '../../src/shared/ids.ts';
import { queryOnce, startDatabase, type TestDatabase } from '../support/database.ts';

const CONNECTIONS = 60;
const BY = { actor: 'system' } as const;
const org_id = newId('org');
let database: TestDatabase;
let db: Db;

before(async () => {
  database = await startDatabase();
  db = openPool(database.url, () => undefined, CONNECTIONS);
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

/** A transaction that stays open after `work`. */
async function begun(work: (tx: Tx) => Promise<unknown>) {
  const ready = Promise.withResolvers<void>();
  const end = Promise.withResolvers<'commit' | 'roll back'>();
  const ended = transaction(db, async (tx) => {
    await work(tx);
    ready.resolve();
    if ((await end.promise) === 'roll back') throw new Error('rolled back');
  }).catch((error: Error) => assert.equal(error.message, 'rolled back'));
  await Promise.race([ready.promise, ended]);
  return (how: 'commit' | 'roll back') => {
    end.resolve(how);
    return ended;
  };
}

test('an event that commits late is not skipped and delays no other', async () => {
  const seen: NumberedEvent[] = [];
  const endLate = await begun((tx) => happen(tx, 1));
  const endNever = await begun((tx) => happen(tx, 3));
  await transaction(db, (tx) => happen(tx, 2));
  await dispatchEvents(db, [keepIn(seen)]);
  assert.deepEqual(
    seen.map(({ data }) => data),
    [{ n: 2 }],
    'an open transaction holds nothing up',
  );
  await endLate('commit');
  await endNever('roll back');
  await dispatchEvents(db, [keepIn(seen)]);
  assert.deepEqual(
    seen.map(({ data, position }) => ({ data, position })),
    [
      { data: { n: 2 }, position: 1 },
      { data: { n: 1 }, position: 2 },
    ],
  );
});

test('concurrent dispatchers dispatch each event once, without gaps in the positions', async () => {
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

test('a batch whose consumer fails is dispatched again', async () => {
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

test('a batch reads only its own events, whatever the planner assumes', async () => {
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
    assert.equal((await numberEvents(tx, 100))?.length, 100);
    return (await tuplesRead(tx)) - before;
  });
  assert.ok(read < 1_000, `${read} rows were read for 100 events`);
  await dispatchEvents(db, []);
});

/** Rows of events that this transaction has read. */
async function tuplesRead(tx: Tx): Promise<number> {
  const { rows } = await sql<{ tuples: number }>`
    select seq_tup_read + idx_tup_fetch as tuples from pg_stat_xact_user_tables where relname = 'events'`.execute(
    tx,
  );
  return Number(rows[0]?.tuples ?? 0);
}

test("an instance's events have positions in the order of their sequence, whichever transaction began first", async () => {
  const id = await makeInstance();
  const started = (tx: Tx) => append(tx, { org_id, instance_id: id, type: 'vm.started', data: {}, ...BY });
  const seen: NumberedEvent[] = [];
  await Promise.all(
    Array.from({ length: 50 }, () =>
      transaction(db, async (tx) => {
        await happen(tx, 0);
        await started(tx);
        await happen(tx, 0);
        await started(tx);
      }),
    ),
  );
  await dispatchEvents(db, [keepIn(seen)]);
  assert.deepEqual(
    seen.flatMap(({ sequence }) => sequence ?? []),
    Array.from({ length: 100 }, (_, n) => n + 1),
  );
});

test('an old event is deleted only after its dispatch', async () => {
  await dispatchEvents(db, []);
  await happen(db, 2);
  await sql`update events set created_at = now() - interval '31 days'`.execute(db);
  const count = async () => (await db.selectFrom('events').select('id').execute()).length;
  await deleteOldEvents(db);
  assert.equal(await count(), 1);
  await dispatchEvents(db, []);
  await deleteOldEvents(db);
  assert.equal(await count(), 0);
});

test('with hundreds of writers that commit or roll back in any order, several dispatchers dispatch each committed event once, in order', async () => {
  const instances = await Promise.all(Array.from({ length: 4 }, makeInstance));
  const committed = new Set<EventId>();
  const write = async (n: number) => {
    const ids: EventId[] = [];
    const linger = async (tx: Tx) => {
      for (let left = Math.floor(Math.random() * 8); left > 0; left--) await sql`select`.execute(tx);
    };
    await db
      .transaction()
      .execute(async (tx) => {
        await linger(tx);
        for (let each = 0; each <= n % 3; each++) {
          ids.push(await happen(tx, n));
          await linger(tx);
        }
        const instance_id = instances[n % 8];
        if (instance_id) {
          ids.push(await append(tx, { org_id, instance_id, type: 'vm.started', data: {}, ...BY }));
          await linger(tx);
        }
        if (Math.random() < 0.3) throw new Error('rolled back');
        for (const id of ids) committed.add(id);
      })
      .catch((error: Error) => assert.equal(error.message, 'rolled back'));
  };
  const seen: NumberedEvent[] = [];
  const pools = Array.from({ length: 3 }, () => openPool(database.url, () => undefined));
  let is_over = false;
  const dispatchers = pools.map(async (pool) => {
    while (!is_over) await dispatchEvents(pool, [keepIn(seen)]);
  });
  await inParallel(Array.from({ length: 600 }).keys(), CONNECTIONS, write);
  is_over = true;
  await Promise.all(dispatchers);
  await dispatchEvents(db, [keepIn(seen)]);
  for (const pool of pools) await pool.destroy();
  assert.equal(seen.length, committed.size);
  assert.deepEqual(new Set(seen.map(({ id }) => id)), committed);
  const positions = seen.map(({ position }) => position);
  assert.deepEqual(
    positions,
    positions.toSorted((a, b) => a - b),
  );
  for (const id of instances) {
    const sequences = seen.filter(({ instance_id }) => instance_id === id).map(({ sequence }) => sequence);
    assert.deepEqual(
      sequences,
      sequences.map((_, n) => n + 1),
    );
  }
});

async function makeInstance(): Promise<InstanceId> {
  const id = newId('inst');
  const text = `insert into instances (id, org_id, created_by, name, image, cpus, memory_mib, disk_gib, labels, wake_on_connect, ssh_port)
    values ($1, 'org_1', 'usr_1', $1, 'debian-12', 1, 512, 8, '{}', false, $2)`;
  const organisation = `insert into organisations (id, name, billing_email) values ('org_1', '', '') on conflict do nothing`;
  await queryOnce(database.url, organisation);
  ports += 1;
  await queryOnce(database.url, text, [id, ports]);
  return id;
}
let ports = 22_000;
