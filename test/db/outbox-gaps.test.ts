/** Positions are taken before commits: what the dispatcher does where one is missing. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { sql } from 'kysely';
import pg from 'pg';
import { type Db, openPool, type Tx } from '../../src/db/pool.ts';
import { append } from '../../src/events/append.ts';
import {
  deleteOldEvents,
  type NumberedEvent,
  type PlacedEvent,
  readEvents,
  takeSettled,
} from '../../src/events/store.ts';
import { toAppError } from '../../src/http/errors.ts';
import { type EventId, type InstanceId, newId } from '../../src/lib/ids.ts';
import { inParallel } from '../../src/lib/in-parallel.ts';
import { deleteOrganisation } from '../../src/orgs/store.ts';
import { dispatchEvents } from '../../src/tasks/dispatch-events.ts';
import { queryOnce, startDatabase, type TestDatabase } from '../support/database.ts';
import { until } from '../support/waiting.ts';

const CONNECTIONS = 60;
const org_id = newId('org');
const BY = { actor: 'system' } as const;
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

/** At once, also where `tx` is a transaction: it is none of those that send their events with COMMIT. */
const happen = (tx: Tx, n: number) => append(tx, { org_id, type: 'member.added', data: { n }, ...BY });

/** A transaction that stays open. */
async function begun(work: (tx: Tx) => Promise<unknown>) {
  const ready = Promise.withResolvers<void>();
  const told = Promise.withResolvers<'commit' | 'roll back'>();
  const ended = db
    .transaction()
    .execute(async (tx) => {
      await work(tx);
      ready.resolve();
      if ((await told.promise) === 'roll back') throw new Error('rolled back');
    })
    .catch((error: Error) => assert.equal(error.message, 'rolled back'));
  await ready.promise;
  const end = (how: 'commit' | 'roll back') => () => {
    told.resolve(how);
    return ended;
  };
  return { commit: end('commit'), rollBack: end('roll back') };
}

const keepIn = (seen: NumberedEvent[]) => async (tx: Tx, events: readonly PlacedEvent[]) => {
  seen.push(...(await readEvents(tx, events)));
};

/** What one run hands over. */
async function handedOver(): Promise<unknown[]> {
  const seen: NumberedEvent[] = [];
  await dispatchEvents(db, [keepIn(seen)]);
  return seen.map(({ data }) => (data as { n: number }).n);
}

/** An event that is written while another transaction, which has written one before, hangs. */
async function happenedBehind(): Promise<void> {
  const isHeldUp = async () => {
    await happen(db, 2);
    return (await handedOver()).length === 0;
  };
  await until('an event is there that cannot be handed over', isHeldUp, { timeout_ms: 15_000 });
  // Half as long as a connection for long work may be idle, and as a statement may take.
  await until('it is handed over', async () => (await handedOver()).includes(2), { timeout_ms: 15_000 });
}

describe('an event behind a position that is missing', () => {
  test('waits for who has it, and comes after it', async () => {
    const early = await begun((tx) => happen(tx, 1));
    await happen(db, 2);
    assert.deepEqual(await handedOver(), []);
    await early.commit();
    assert.deepEqual(await handedOver(), [1, 2]);
  });

  test('does not wait for what was handed over before it', async () => {
    await happen(db, 1);
    const open = await begun((tx) => happen(tx, 2));
    await happen(db, 3);
    assert.deepEqual(await handedOver(), [1]);
    assert.deepEqual(await handedOver(), []);
    await open.commit();
    assert.deepEqual(await handedOver(), [2, 3]);
  });

  test('comes after who had it, also where that one commits between the look for it and the look for who is under way', async () => {
    const early = await begun((tx) => happen(tx, 1));
    await happen(db, 2);
    await db.transaction().execute(async (tx) => {
      let answers = 0;
      const watched = tx.withPlugin({
        transformQuery: ({ node }) => node,
        transformResult: async ({ result }) => {
          answers += 1;
          // The head, and then what is beyond it.
          if (answers === 2) await early.commit();
          return result;
        },
      });
      assert.equal((await takeSettled(watched, 10))?.events.length, 2);
    });
  });

  test('waits some seconds at most for who hangs, which is rolled back', async () => {
    const hanging = Promise.withResolvers<never>();
    const hung = db.transaction().execute(async (tx) => {
      await happen(tx, 1);
      return hanging.promise;
    });
    hung.catch(() => undefined);
    await happenedBehind();
    hanging.reject(new Error('at last'));
    await assert.rejects(hung);
  });

  test('waits some seconds at most for who waits for a lock that is not given back', async () => {
    const holder = new pg.Client({ connectionString: database.url });
    await holder.connect();
    try {
      await holder.query('begin; create table locked (n int); commit; begin; lock table locked');
      const waiting = db.transaction().execute(async (tx) => {
        await happen(tx, 1);
        await sql`select * from locked`.execute(tx);
      });
      waiting.catch(() => undefined);
      await happenedBehind();
      const error = toAppError(await waiting.catch((thrown: unknown) => thrown));
      assert.equal(error.code, 'UNAVAILABLE');
    } finally {
      await holder.end();
    }
  });

  test('comes once who had it has rolled back', async () => {
    const early = await begun((tx) => happen(tx, 1));
    await happen(db, 2);
    assert.deepEqual(await handedOver(), []);
    await early.rollBack();
    assert.deepEqual(await handedOver(), [2]);
  });

  test('comes though somebody writes events at every moment', async () => {
    let open = await begun((tx) => happen(tx, 0));
    await happen(db, 1);
    for (let n = 1; n <= 5; n++) {
      assert.deepEqual(await handedOver(), []);
      // What was seen then is told apart from newcomers, also by the next run.
      const newcomer = await begun((tx) => happen(tx, -n));
      await happen(db, n + 1);
      await open.rollBack();
      open = newcomer;
      assert.deepEqual(await handedOver(), [n]);
    }
    await open.rollBack();
    assert.deepEqual(await handedOver(), [6]);
  });

  test('waits for nobody who writes something else, and for nobody who reads events', async () => {
    const others = await begun(async (tx) => {
      await sql`insert into organisations (id, name, billing_email) values (${newId('org')}, '', '')`.execute(
        tx,
      );
      await sql`select from events`.execute(tx);
    });
    await (await begun((tx) => happen(tx, 1))).rollBack();
    await happen(db, 2);
    assert.deepEqual(await handedOver(), [2]);
    await others.commit();
  });

  test('comes where the counter has jumped, as after a crash of PostgreSQL', async () => {
    await happen(db, 1);
    await sql`select setval('events_position_seq', (select last_value + 31 from events_position_seq))`.execute(
      db,
    );
    await happen(db, 2);
    assert.deepEqual(await handedOver(), [1, 2]);
  });

  test('comes where the one before it was deleted with its organisation', async () => {
    const gone = newId('org');
    await append(db, { org_id: gone, type: 'member.added', data: {}, ...BY });
    await deleteOrganisation(db, gone);
    await happen(db, 1);
    assert.deepEqual(await handedOver(), [1]);
  });

  test('comes with those behind it, however many are missing', async () => {
    const expected: number[] = [];
    await db.transaction().execute(async (tx) => {
      for (let n = 0; n < 1_500; n++) {
        if (n % 7 === 0) await sql`select nextval('events_position_seq')`.execute(tx);
        await happen(tx, n);
        expected.push(n);
      }
    });
    assert.deepEqual(await handedOver(), expected);
  });
});

test('of an instance the positions ascend as the sequence does, whoever began first', async () => {
  const id = await anInstance();
  const started = (tx: Tx) => append(tx, { org_id, instance_id: id, type: 'vm.started', data: {}, ...BY });
  await Promise.all(
    Array.from({ length: 50 }, () =>
      db.transaction().execute(async (tx) => {
        await happen(tx, 0);
        await started(tx);
        await happen(tx, 0);
        await started(tx);
      }),
    ),
  );
  const rows = await db
    .selectFrom('events')
    .select('sequence')
    .where('instance_id', '=', id)
    .orderBy('position')
    .execute();
  assert.deepEqual(
    rows.map(({ sequence }) => sequence),
    Array.from({ length: 100 }, (_, n) => n + 1),
  );
  await dispatchEvents(db, []);
});

test('what is old is deleted once it was handed over, not before', async () => {
  const early = await begun((tx) => happen(tx, 1));
  await happen(db, 2);
  await sql`update events set created_at = now() - interval '31 days'`.execute(db);
  const count = async () => (await db.selectFrom('events').select('id').execute()).length;
  await deleteOldEvents(db);
  assert.equal(await count(), 1);
  await early.rollBack();
  assert.deepEqual(await handedOver(), [2]);
  await deleteOldEvents(db);
  assert.equal(await count(), 0);
});

test('of hundreds of writers that commit and roll back in any order, and several dispatchers: each committed event once, in order', async () => {
  const instances = await Promise.all(Array.from({ length: 4 }, anInstance));
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

async function anInstance(): Promise<InstanceId> {
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
