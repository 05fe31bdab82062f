/** Events of a database from before they had their positions from the start: those that waited follow the others. */
import assert from 'node:assert/strict';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { withSnapshot } from '../../src/backup/dump-data.ts';
import { loadData } from '../../src/backup/load-data.ts';
import { migrate } from '../../src/db/migrate.ts';
import { openPool } from '../../src/db/pool.ts';
import { append } from '../../src/events/append.ts';
import type { PlacedEvent } from '../../src/events/store.ts';
import { newId } from '../../src/lib/ids.ts';
import { dispatchEvents } from '../../src/tasks/dispatch-events.ts';
import { queryOnce, startDatabase } from '../support/database.ts';

const database = await startDatabase();
after(() => database.close());
const NAMES = await readdir(join(import.meta.dirname, '..', '..', 'src', 'db', 'sql'));
const before = new Set(NAMES.filter((name) => name < '000040'));
const EVENT = 'insert into events (id, org_id, type, data, actor, position)';

async function handedOver(url: string): Promise<readonly PlacedEvent[]> {
  const db = openPool(url, () => undefined);
  const seen: PlacedEvent[] = [];
  await append(db, { org_id: newId('org'), type: 'member.added', data: {}, actor: 'system' });
  await dispatchEvents(db, [async (_, events) => void seen.push(...events)]);
  await db.destroy();
  return seen;
}

test('what waited is handed over next, in its order, and new events after it', async () => {
  const url = await database.createEmpty('waiting');
  await migrate(url, { only: before });
  // Ids that sort the other way round.
  await queryOnce(
    url,
    `${EVENT} select 'evt_' || n, 'org_1', 't', '{}', 's', n from generate_series(1, 6) n`,
  );
  await queryOnce(
    url,
    `${EVENT} select 'evt_' || 99 - n, 'org_1', 't', '{}', 's', null from generate_series(1, 3) n`,
  );
  await queryOnce(url, `delete from events where id = 'evt_6'`);
  await queryOnce(url, 'update event_head set position = 6');
  await migrate(url);
  assert.deepEqual(
    (await handedOver(url)).map(({ id, position }) => [position === 10 ? 'new' : id, position]),
    [
      ['evt_98', 7],
      ['evt_97', 8],
      ['evt_96', 9],
      ['new', 10],
    ],
  );
});

test('of one where none waited the positions go on behind all that were given, also from a backup', async () => {
  const url = await database.createEmpty('settled');
  await migrate(url, { only: before });
  await queryOnce(url, 'update event_head set position = 20');
  await migrate(url);
  const loaded = await database.createEmpty('loaded');
  await migrate(loaded);
  await withSnapshot(url, (snapshot) => loadData(loaded, snapshot.lines()));
  for (const each of [url, loaded]) {
    assert.deepEqual(
      (await handedOver(each)).map(({ position }) => position),
      [21],
    );
  }
});

test('who writes events the old way meanwhile is waited for, and its event is not lost', async () => {
  const url = await database.createEmpty('meanwhile');
  await migrate(url, { only: before });
  const db = openPool(url, () => undefined);
  let migrating: Promise<unknown> | undefined;
  await db.transaction().execute(async (tx) => {
    await sql`insert into events (id, org_id, type, data, actor) values ('evt_1', 'org_1', 't', '{}', 's')`.execute(
      tx,
    );
    migrating = migrate(url);
    for (let waits = false; !waits; ) {
      const { rows } = await sql`
        select from pg_locks where relation = 'events'::regclass and mode = 'AccessExclusiveLock' and not granted`.execute(
        db,
      );
      waits = rows.length > 0;
    }
  });
  await migrating;
  await db.destroy();
  assert.deepEqual(
    (await handedOver(url)).map(({ position }) => position),
    [1, 2],
  );
});
