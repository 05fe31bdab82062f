/** What a backup saves of a database, loaded into another one. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { loadData, withSnapshot } from '../../src/control-plane/backup/table-data.ts';
import { knownMigrations, migrate } from '../../src/control-plane/db/migrate.ts';
import { queryOnce, startDatabase } from '../support/database.ts';

const database = await startDatabase();
after(() => database.close());

const dumped = (url: string) =>
  withSnapshot(url, async (snapshot) => {
    const lines: string[] = [];
    for await (const line of snapshot.lines()) lines.push(line);
    return lines;
  });
let databases = 0;
async function emptyTables(): Promise<string> {
  databases += 1;
  const url = await database.createEmpty(`loaded_${databases}`);
  await migrate(url);
  return url;
}
async function* each(lines: readonly string[]): AsyncGenerator<string> {
  yield* lines;
}

const AWKWARD = `comma, "quote" 'single' back\\\\slash (paren) {brace} \u00e9\u4e2d\ud83d\ude00 and\nlines\ttabs`;

test('every row is restored unchanged: texts, bytes, times, arrays, JSON, nulls, computed columns, counters', async () => {
  await queryOnce(
    database.url,
    `insert into users (id, email, email_key, name, password_hash, created_at)
     select 'usr_' || n, 'a' || n || '@b', 'a' || n || '@b', case n when 1 then $1 else '' end, 'x', timestamptz '2026-01-02 03:04:05.678901+05'
     from generate_series(1, 450) n`,
    [AWKWARD],
  );
  for (const text of [
    `insert into organisations (id, name, billing_email) values ('org_1', 'null', 'NULL')`,
    `insert into known_locations (user_id, location_hash) values ('usr_1', '\\x00ff5c22')`,
    `insert into webhooks (id, org_id, name, url, events, secret, created_by)
     values ('wh_1', null, '', 'https://x', array['a,b', '"', null], '\\x', 'usr_1')`,
    `insert into notifications (id, recipient, kind, title, body, data, count, position, event_id, created_at, raised_at)
     values ('ntf_1', 'usr_2', 'k', 't', 'b', '{"a": [1.50, "\\u00e9", null]}', 9007199254740991, 1, 'evt_1', now(), now())`,
    `insert into events (id, org_id, type, data, actor) select 'evt_' || n, 'org_1', 't', '{}', 'system' from generate_series(1, 3) n`,
    `delete from events where id = 'evt_3'`,
    `insert into instances (id, org_id, created_by, name, image, cpus, memory_mib, disk_gib, labels, wake_on_connect, ssh_port)
     values ('inst_1', 'org_1', 'usr_1', 'a', 'debian-12', 1, 512, 8, '{}', false, 22000)`,
    `insert into disks (instance_id, size_bytes, boot_order) values ('inst_1', 1099511627776, '{1,2,3}')`,
    `insert into generations (instance_id, generation, epoch, bytes, consistency, segments, parent)
     select 'inst_1', n, 1, 0, 'crash', '[]', nullif(n - 1, 0) from generate_series(1, 500) n`,
  ]) {
    await queryOnce(database.url, text);
  }
  const before = await dumped(database.url);
  const url = await emptyTables();
  const rows = await loadData(url, each(before));
  assert.deepEqual(await dumped(url), before);
  assert.ok(rows > 950, String(rows));
  const [next] = await queryOnce<{ serial: string }>(
    url,
    `insert into events (id, org_id, type, data, actor) values ('evt_4', 'org_1', 't', '{}', 'system') returning serial::text`,
  );
  assert.equal(next?.serial, '4', 'a counter goes on behind rows that are gone');
});

test('truncated data, and data of another schema, change nothing', async () => {
  const lines = await dumped(database.url);
  const url = await emptyTables();
  // Counters are not rolled back, and need not be.
  const rows = async () => (await dumped(url)).filter((line) => !line.startsWith('{"sequences"'));
  const nothing = await rows();
  await assert.rejects(loadData(url, each(lines.slice(0, -1))), { message: 'the data breaks off' });
  await assert.rejects(
    loadData(
      url,
      each(lines.filter((line) => !line.includes('usr_7"')).filter((line) => !line.startsWith('"(usr_9,'))),
    ),
    /rows where/,
  );
  const other = lines.map((line) => line.replace('"email_key"', '"e_mail_key"'));
  await assert.rejects(loadData(url, each(other)), /the table (lockouts|users) is not here as it was saved/);
  const without = lines.filter((line) => !line.startsWith('{"table":"hosts"'));
  await assert.rejects(loadData(url, each(without)), /nothing was saved of hosts/);
  assert.deepEqual(await rows(), nothing);
});

test('a dump is one snapshot, despite concurrent writes', async () => {
  const texts = await withSnapshot(database.url, async (snapshot) => {
    await queryOnce(
      database.url,
      `insert into organisations (id, name, billing_email) values ('org_late', 'n', 'b')`,
    );
    const lines: string[] = [];
    for await (const line of snapshot.lines()) lines.push(line);
    return lines;
  });
  assert.equal(
    texts.some((line) => line.includes('org_late')),
    false,
  );
  assert.ok((await dumped(database.url)).some((line) => line.includes('org_late')));
});

test('a dump of an older schema is loaded into that schema and then migrated', async () => {
  const names = knownMigrations().map(({ name }) => name);
  const only = new Set(names.slice(0, -3));
  const [older, url] = [await database.createEmpty('older'), await database.createEmpty('from_older')];
  await migrate(older, { only });
  await queryOnce(older, `insert into organisations (id, name, billing_email) values ('org_old', 'n', 'b')`);
  const migrations = await withSnapshot(older, async (snapshot) => snapshot.migrations);
  assert.deepEqual(
    migrations.map(({ name }) => name),
    [...only],
  );
  await migrate(url, { only });
  await loadData(url, each(await dumped(older)));
  assert.deepEqual(await migrate(url), names.slice(-3));
  assert.deepEqual(await queryOnce(url, 'select id from organisations'), [{ id: 'org_old' }]);
});
