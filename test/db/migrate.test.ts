/** The migrator and the committed schema, on real databases. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { cp, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, type TestContext, test } from 'node:test';
import pg from 'pg';
import {
  MigrationError,
  migrate,
  refuseNewerDatabase,
  requireMigrated,
} from '../../src/control-plane/db/migrate.ts';
import { queryOnce, startDatabase } from '../support/database.ts';
import { dumpSchema } from '../support/dump-schema.ts';
import { tableTypes } from '../support/table-types.ts';
import { until } from '../support/waiting.ts';

const DB = join(import.meta.dirname, '..', '..', 'src', 'control-plane', 'db');
const database = await startDatabase();
after(() => database.close());

let databases = 0;
function empty(): Promise<string> {
  databases += 1;
  return database.createEmpty(`empty_${databases}`);
}

/** A copy of the migrations that the test may change. */
async function migrations(t: TestContext): Promise<string> {
  const folder = await mkdtemp(join(tmpdir(), 'berth-sql-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  await cp(join(DB, 'sql'), folder, { recursive: true });
  return folder;
}

const NAMES = (await readdir(join(DB, 'sql'))).sort();

test('schema.sql is what the migrations make (if not: node test/support/write-schema.ts)', async () => {
  assert.equal(await readFile(join(DB, 'schema.sql'), 'utf8'), await dumpSchema(database.url));
});

test('tables.ts is what the migrations make (if not: node test/support/write-schema.ts)', async () => {
  assert.equal(await readFile(join(DB, 'tables.ts'), 'utf8'), await tableTypes(database.url));
});

test('schema.sql creates the schema that it shows', async () => {
  const url = await empty();
  // Foreign keys name tables that come later: the tables alone first, then their foreign keys.
  const text = await readFile(join(DB, 'schema.sql'), 'utf8');
  const foreign: string[] = [];
  const tables = text.replaceAll(
    /create (?:unlogged )?table (\w+) \((.*?)\n\);/gs,
    (whole: string, name: string) =>
      whole.replaceAll(/,\n {2}(constraint \w+ FOREIGN KEY [^\n]*?)(?=,?\n)/g, (_all, constraint: string) => {
        foreign.push(`alter table ${name} add ${constraint}`);
        return '';
      }),
  );
  await queryOnce(url, tables);
  for (const statement of foreign) await queryOnce(url, statement);
  // Its comments are comments of the file.
  const [head = '', ...rest] = text.split(/^/m);
  assert.equal(await dumpSchema(url), head + rest.filter((line) => !/^ *-- /.test(line)).join(''));
});

test('a first run creates everything, a second one nothing', async () => {
  const url = await empty();
  assert.deepEqual(await migrate(url), NAMES);
  const before = await dumpSchema(url);
  assert.deepEqual(await migrate(url), []);
  assert.equal(await dumpSchema(url), before);
});

test('of five concurrent migrators one migrates and all succeed', async () => {
  const url = await empty();
  const ran = await Promise.all(Array.from({ length: 5 }, () => migrate(url)));
  assert.deepEqual(ran.map((names) => names.length).sort(), [0, 0, 0, 0, NAMES.length]);
});

test('a migration that was changed after it was applied is refused by name', async (t) => {
  const url = await empty();
  await migrate(url);
  const folder = await migrations(t);
  const first = NAMES[0] ?? '';
  await writeFile(join(folder, first), `${await readFile(join(folder, first), 'utf8')}\n-- changed\n`);
  await assert.rejects(migrate(url, { dir: folder }), {
    name: 'MigrationError',
    message: `the database was made by another version of Berth (migration ${first} has changed since): use that version, or another data folder`,
  });
});

test('a database of another version is refused, and the message says what to do', async (t) => {
  const url = await empty();
  const folder = await migrations(t);
  await writeFile(join(folder, '999999-future.sql'), 'create table future (id text);');
  assert.deepEqual(await migrate(url, { dir: folder }), [...NAMES, '999999-future.sql']);
  const before = await dumpSchema(url);
  for (const attempt of [() => migrate(url), () => refuseNewerDatabase(url)]) {
    await assert.rejects(attempt, (error) => {
      assert(error instanceof MigrationError);
      assert.match(error.message, /another version of Berth .*999999-future\.sql.*use that version/);
      return true;
    });
  }
  assert.equal(await dumpSchema(url), before);
  await refuseNewerDatabase(await empty());
});

test('a database of a Berth before 0.1.0 is refused in one line, and not changed', async () => {
  const url = await empty();
  await queryOnce(url, 'create table schema_migrations (name text primary key, sha256 text not null)');
  await queryOnce(url, `insert into schema_migrations values ('000001-accounts.sql', 'f')`);
  for (const refused of [migrate, refuseNewerDatabase, requireMigrated])
    await assert.rejects(refused(url), {
      name: 'MigrationError',
      message:
        'the database was made by another version of Berth (migration 000001-accounts.sql is unknown): use that version, or another data folder',
    });
  assert.deepEqual(await queryOnce(url, `select to_regclass('users') as users`), [{ users: null }]);
});

/** Applies one more migration, as a later version would. */
async function later(t: TestContext, url: string, text: string): Promise<void> {
  const folder = await migrations(t);
  await writeFile(join(folder, '999999-later.sql'), text);
  assert.deepEqual(await migrate(url, { dir: folder }), ['999999-later.sql']);
}

test('a program goes on after a migration that only expands, and after a contraction of what it does not use', async (t) => {
  for (const first of ['-- expand', `-- contract after ${NAMES.at(-1)}`]) {
    const url = await empty();
    await migrate(url);
    await later(t, url, `${first}\ncreate table later (id text);`);
    await refuseNewerDatabase(url);
    await requireMigrated(url);
    assert.deepEqual(await migrate(url), []);
  }
});

test('a contraction of what a program uses is refused by it, and taken by the one before the contraction', async (t) => {
  const url = await empty();
  await migrate(url);
  await later(t, url, '-- expand\ncreate table later (id text);');
  const folder = await migrations(t);
  await writeFile(join(folder, '999999-later.sql'), '-- expand\ncreate table later (id text);');
  const before = folder;
  const after = await migrations(t);
  await cp(folder, after, { recursive: true });
  const text = '-- contract after 999999-later.sql\nalter table users drop column name;';
  await writeFile(join(after, '999999-we-drop.sql'), text);
  assert.deepEqual(await migrate(url, { dir: after }), ['999999-we-drop.sql']);
  await requireMigrated(url, before);
  for (const refused of [migrate, refuseNewerDatabase, requireMigrated])
    await assert.rejects(
      refused(url),
      /another version of Berth \(migration 999999-we-drop.sql is unknown\)/,
    );
});

test('a program of a fleet refuses a database that lacks its migrations, and applies none', async (t) => {
  const url = await empty();
  await assert.rejects(requireMigrated(url), {
    message: `it lacks the migration ${NAMES[0]}: run berth migrate, which upgrades it`,
  });
  assert.deepEqual(await queryOnce(url, "select to_regclass('users') as users"), [{ users: null }]);
  await migrate(url);
  await requireMigrated(url);
  const folder = await migrations(t);
  await writeFile(join(folder, '999999-later.sql'), '-- expand\ncreate table later (id text);');
  await assert.rejects(requireMigrated(url, folder), /it lacks the migration 999999-later.sql/);
});

test('a migration waits for its locks without holding up others, and is tried again', async (t) => {
  const url = await empty();
  await migrate(url);
  const holder = new pg.Client({ connectionString: url });
  await holder.connect();
  t.after(() => holder.end());
  await holder.query('begin; lock table users in access share mode');
  const migrating = later(t, url, '-- expand\nalter table users add column later text;');
  const waits = () =>
    queryOnce(
      url,
      "select from pg_stat_activity where wait_event_type = 'Lock' and query like '%add column later%'",
    );
  await until('it waits for the table', async () => (await waits()).length > 0);
  // Behind it, and answered when it gives up.
  assert.deepEqual(await queryOnce(url, 'select count(*)::int as count from users'), [{ count: 0 }]);
  await holder.query('commit');
  await migrating;
});

const EXPANDS = NAMES.filter((name) => readFileSync(join(DB, 'sql', name), 'utf8').startsWith('-- expand'));

test('a migration that claims to expand takes nothing away from older programs', () => {
  // Removals, other types and names, and columns that their inserts would have to fill.
  const TAKES =
    /\b(drop|rename|alter column|set not null|add constraint)\b|\badd column\b(?![^,;]*\bdefault\b)[^,;]*\bnot null\b/i;
  for (const name of EXPANDS) {
    const text = readFileSync(join(DB, 'sql', name), 'utf8').replaceAll(/--.*$/gm, '');
    assert.doesNotMatch(text, TAKES, name);
  }
  for (const text of [
    'drop table a',
    'alter table a add column b text not null',
    'alter table a rename b to c',
  ])
    assert.match(text, TAKES);
  for (const text of [
    "alter table a add column b text not null default ''",
    'alter table a add column b int',
  ])
    assert.doesNotMatch(text, TAKES);
});

test('a first line that means to say a step, and does not, is refused', async (t) => {
  const folder = await migrations(t);
  await writeFile(join(folder, '999999-later.sql'), '-- Expands\ncreate table later (id text);');
  await assert.rejects(
    migrate(await empty(), { dir: folder }),
    /999999-later.sql: its first line is neither/,
  );
});

test('a failed migration leaves nothing behind, keeps the earlier ones, and is tried again', async (t) => {
  const url = await empty();
  const folder = await migrations(t);
  const bad = join(folder, '999999-bad.sql');
  await writeFile(bad, 'create table half (id text); select nonsense;');
  await assert.rejects(
    migrate(url, { dir: folder }),
    /999999-bad\.sql failed: column "nonsense" does not exist/,
  );
  assert.deepEqual(await queryOnce(url, "select to_regclass('half') as half"), [{ half: null }]);
  await writeFile(bad, 'create table whole (id text);');
  assert.deepEqual(await migrate(url, { dir: folder }), ['999999-bad.sql']);
});

test("a file whose name is not a migration's is refused before anything runs", async (t) => {
  const folder = await migrations(t);
  await writeFile(join(folder, 'later.sql'), 'select 1');
  await assert.rejects(migrate(await empty(), { dir: folder }), /later\.sql: not named NNNNNN-name\.sql/);
});
