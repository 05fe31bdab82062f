/** Server commands through `bin/berth`, on the database of an API in this process. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { existsSync } from 'node:fs';
import { mkdir, writeFile } from 'node:fs/promises';
import { dirname, join } from 'node:path';
import { describe, test } from 'node:test';
import { sql } from 'kysely';
import { pathsIn } from '../../src/config/paths.ts';
import { sealAudit } from '../../src/control-plane/audit/seal-audit.ts';
import { insertIngress } from '../../src/control-plane/fleet/control-plane-store.ts';
import { parseJoinToken } from '../../src/protocol/protocol.ts';
import { apiForFile } from '../support/api.ts';
import { queryOnce } from '../support/database.ts';
import { assertError } from '../support/expect.ts';
import { type Ran, serverCliForFile } from '../support/server-cli.ts';

const api = await apiForFile();
const { data_dir, settings, berth, berthWith, done, actions } = await serverCliForFile(api);
const PASSWORD = 'correct horse battery';
const MAIN = join(import.meta.dirname, '..', '..', 'src', 'main.ts');
const seal = () => sealAudit(api.context.db, api.context.audit);
const person = () => api.person({ password: PASSWORD });
const firstOrg = async () =>
  (await api.db.selectFrom('organisations').select('id').orderBy('id').executeTakeFirstOrThrow()).id;

describe('berth org', () => {
  test('quota shows what is used, sets limits that the API then keeps, and takes them away', async () => {
    const who = await person();
    await api.instance(who);
    const quota = (...change: string[]) => done('org', 'quota', who.org_id, ...change);
    const shown = await quota();
    assert.match(shown, /^instances +1 +20 +default$/m);
    assert.match(shown, /^service-accounts +0 +50 +default$/m);
    assert.match(shown, /^streams +0 +100 +default$/m);
    assert.match(await quota('--instances', '1', '--api-keys=3'), /^instances +1 +1 +set$/m);
    assertError(await api.as(who).post('/v1/instances', { name: 'second' }), 'QUOTA_EXCEEDED');
    const read = await api.as(who).get<{ instances: unknown }>(`/v1/orgs/${who.org_id}/quota`);
    assert.deepEqual(read.body.instances, { limit: 1, source: 'set', used: 1 });
    assert.match(await quota('--instances', 'unlimited'), /^instances +1 +unlimited +set$/m);
    assert.equal((await api.as(who).post('/v1/instances', { name: 'second' })).status, 201);
    const changes = (await actions(who.org_id)).filter((each) => each.startsWith('org.change_quota'));
    assert.deepEqual(changes, Array(2).fill('org.change_quota by operator'));
    assert.match(await quota('--instances', 'default'), /^instances +2 +20 +default$/m);
    assert.match(await quota(), /^api-keys +0 +3 +set$/m);
  });

  test('quota without an organisation lists them all', async () => {
    const { org_id } = await person();
    assert.match(await done('org', 'quota'), new RegExp(`^Org +1 +${org_id}$`, 'm'));
  });
});

describe('berth audit verify', () => {
  test('looks at the logs of deleted organisations too: all of them, and one by its id', async () => {
    const who = await person();
    const { org_id } = who;
    await api.as(who).patch('/v1/me', { name: 'a' });
    await seal();
    await api.as(who).patch('/v1/me', { name: 'b' });
    await api.db.deleteFrom('organisations').where('id', '=', org_id).execute();
    const whole = `${org_id}, deleted: 1 entry, intact; 1 more not yet sealed\n`;
    assert.equal(await done('audit', 'verify', org_id), whole);
    assert.ok((await done('audit', 'verify')).includes(whole));
    const log = () => api.db.deleteFrom('audit_log').where('org_id', '=', org_id);
    await log().where('seq', 'is', null).execute();
    await log().where('seq', '=', 1).execute();
    const { code, err } = await berth('audit', 'verify');
    assert.equal(code, 1);
    assert.ok(err.includes(`${org_id}, deleted: entry 1 was changed, removed or inserted`), err);
    await api.db.deleteFrom('audit_heads').where('org_id', '=', org_id).execute();
    assert.equal((await berth('audit', 'verify', org_id)).code, 3, 'nothing is known of it');
  });

  test('says that a chain is whole, and exits 1 naming the entry that was changed or is missing', async () => {
    const who = await person();
    for (const name of ['a', 'b', 'c', 'd']) await api.as(who).patch('/v1/me', { name });
    assert.match(await done('audit', 'verify', who.org_id), /: 0 entries, intact; 4 more not yet sealed\n$/);
    await seal();
    assert.match(await done('audit', 'verify', who.org_id), /: 4 entries, intact\n$/);
    assert.match(await done('audit', 'verify'), new RegExp(`\\(${who.org_id}\\): 4 entries, intact`));
    const entry = api.db.updateTable('audit_log').where('org_id', '=', who.org_id).where('seq', '=', 2);
    await entry.set({ actor: 'somebody else' }).execute();
    const changed = await berth('audit', 'verify');
    assert.equal(changed.code, 1);
    assert.match(changed.err, new RegExp(`\\(${who.org_id}\\): entry 2 was changed`));
    await entry.set({ actor: who.user_id }).execute();
    await done('audit', 'verify', who.org_id);
    await api.db.deleteFrom('audit_log').where('org_id', '=', who.org_id).where('seq', '=', 4).execute();
    assert.match((await berth('audit', 'verify', who.org_id)).err, /: entry 4 was changed, removed/);
  });

  test('names the very first entry too, by which the key itself is known', async () => {
    const { org_id, actor } = await api.db
      .selectFrom('audit_log')
      .select(['org_id', 'actor'])
      .where('seq', '=', 1)
      .orderBy('org_id')
      .executeTakeFirstOrThrow();
    const entry = api.db.updateTable('audit_log').where('org_id', '=', org_id).where('seq', '=', 1);
    await entry.set({ actor: 'somebody else' }).execute();
    const { code, err } = await berth('audit', 'verify');
    await entry.set({ actor }).execute();
    assert.equal(code, 1);
    assert.ok(err.includes('entry 1 was changed, removed or inserted'), err);
  });

  test('exits 1 naming an entry that was changed before it was sealed', async () => {
    const who = await api.person();
    await api.as(who).patch('/v1/me', { name: 'a' });
    await api.db.updateTable('audit_log').where('org_id', '=', who.org_id).set({ target: 'x' }).execute();
    const { code, err } = await berth('audit', 'verify', who.org_id);
    assert.equal(code, 1);
    assert.match(err, /: entry aud_\w+, not sealed yet, was changed or inserted$/m);
  });
});

describe('berth ingress', () => {
  test('lists ingresses, revokes tokens, and says what is wrong', async () => {
    await api.person();
    await insertIngress(api.db, 'front', randomBytes(32));
    assert.match(
      (await berth('ingress', 'ls')).out,
      /^NAME +STATE +WATCHING SINCE +LAST SEEN\nfront +expected +never +never\n/,
    );
    assert.equal((await berth('ingress', 'ls', '-q')).out, 'front\n');
    assert.match((await berth('ingress', 'ls', '--format', 'json')).out, /"name": ?"front"/);
    const first = await firstOrg();
    assert.match((await berth('ingress', 'rm', 'front')).out, /^Removed front, and revoked its token\./);
    assert.equal((await actions(first)).at(-1), 'ingress.remove by operator');
    const again = await berth('ingress', 'rm', 'front');
    assert.deepEqual(
      [again.code, again.err],
      [3, 'berth: there is no ingress front\n  next: berth ingress ls\n'],
    );
    await api.ingress.reportActivity({ watched_ms: 1, active: [] }, AbortSignal.timeout(5_000));
    const local = await berth('ingress', 'rm', 'local');
    assert.equal(local.code, 5);
    assert.equal((await berth('ingress', 'add', 'Front')).code, 2);
    assert.match((await berth('ingress', 'add', 'front')).err, /BERTH_HOSTS_LISTEN is not set/);
    const alone = await berth('ingress');
    assert.equal(alone.code, 2);
    assert.match(
      alone.err,
      /^berth: BERTH_CONTROL_PLANE: is not set; .*\n.*BERTH_INGRESS_TOKEN_FILE: is not set/,
    );
  });
});

describe('berth host', () => {
  test('what it changes is in the audit log of the organisation that the installation began with', async () => {
    const first = await firstOrg();
    const before = (await actions(first)).length;
    await api.agent.connect();
    const { name } = await api.db.selectFrom('hosts').select('name').executeTakeFirstOrThrow();
    await done('host', 'cordon', name);
    await done('host', 'drain', name);
    await done('host', 'uncordon', name);
    assert.deepEqual((await actions(first)).slice(before), [
      'host.cordon by operator',
      'host.drain by operator',
      'host.uncordon by operator',
    ]);
    const refused = await berth('host', 'rm', name);
    assert.equal(refused.code, 5);
    assert.match(refused.err, /is this machine, which cannot be removed\n {2}next: berth host cordon /);
    assert.match((await berth('host', 'rm', 'nope')).err, /there is no host nope\n {2}next: berth host ls\n/);
    assert.equal((await berth('host', 'add', 'far', '--cpus', 'x')).code, 2);
    assert.equal((await actions(first)).length, before + 3);
  });
});

describe('berth host add', () => {
  test('prints the token alone on stdout, for a file, and what to do with it on stderr', async () => {
    const fleet = { BERTH_HOSTS_LISTEN: '127.0.0.1:7500', BERTH_S3_BUCKET: 'berth' };
    const { code, out, err } = await berthWith({ ...settings, ...fleet }, ['host', 'add', 'rack-2']);
    assert.equal(code, 0, err);
    assert.notEqual(parseJoinToken(out), null, out);
    assert.match(
      err,
      /^Added rack-2\. Its token works once, within 24 hours: .* BERTH_HOST_TOKEN_FILE .*\n$/,
    );
  });
});

describe('berth image rm', () => {
  const { images, objects } = pathsIn(data_dir);
  const VERSION = 'a'.repeat(64);
  const folder = join(images, 'tools', VERSION.slice(0, 12));
  const piece = join(objects, 'images', 'tools', VERSION, 'b'.repeat(64));

  async function image(removed_at: Date | null): Promise<void> {
    for (const path of [folder, dirname(piece), join(images, '.add-killed')])
      await mkdir(path, { recursive: true });
    for (const path of [join(folder, 'rootfs.img'), piece, join(dirname(piece), 'index.json')])
      await writeFile(path, 'x');
    await api.db.deleteFrom('image_versions').where('image_id', '=', 'tools').execute();
    const row = { image_id: 'tools', version: VERSION, recipe: VERSION, index_sha256: VERSION };
    await api.db
      .insertInto('image_versions')
      .values({ ...row, size_bytes: 1, stored_bytes: 1, current: removed_at === null, removed_at })
      .execute();
  }
  const left = () => [folder, piece, join(images, 'tools'), join(images, '.add-killed')].filter(existsSync);

  test('takes it out of use, then removes it here and from the store, and says so in the audit log', async () => {
    await image(null);
    assert.equal(await done('image', 'rm', 'tools'), `tools: removed ${VERSION.slice(0, 12)}\n`);
    assert.deepEqual(left(), []);
    assert.equal((await actions(await firstOrg())).at(-1), 'image.remove by operator');
    const again = await berth('image', 'rm', 'tools');
    assert.deepEqual([again.code, again.out], [1, ''], 'there is none any more');
  });

  test('said again, finishes what was interrupted after the image was taken out of use', async () => {
    await image(new Date());
    assert.equal(
      await done('image', 'rm', 'tools', VERSION.slice(0, 8)),
      `tools: removed ${VERSION.slice(0, 12)}\n`,
    );
    assert.deepEqual(left(), []);
  });

  test('runs alone, and takes no name that leads elsewhere', async () => {
    await image(null);
    await api.db.connection().execute(async (connection) => {
      await sql`select pg_advisory_lock(7400004)`.execute(connection);
      const busy = await berth('image', 'rm', 'tools');
      assert.deepEqual([busy.code, busy.err.includes('another berth image command')], [1, true], busy.err);
      await sql`select pg_advisory_unlock(7400004)`.execute(connection);
    });
    assert.equal((await berth('image', 'rm', '..')).code, 2);
    assert.equal(left().length, 4);
    await done('image', 'rm', 'tools');
  });
});

describe('exit codes', () => {
  test('3 for what is not there, 2 for what is no number, with one line', async () => {
    const cases: [number, string[]][] = [
      [3, ['user', 'reset-password', 'nobody@example.org']],
      [3, ['org', 'quota', 'org_nothing']],
      [2, ['org', 'quota', '--cpus', '4']],
      [2, ['org', 'quota', (await person()).org_id, '--cpus', '-1']],
      [2, ['org', 'quota', (await person()).org_id, '--cpus=1.5']],
      [2, ['org', 'quota', (await person()).org_id, '--cpus', 'none']],
    ];
    for (const [expected, args] of cases) {
      const { code, out, err } = await berth(...args);
      assert.deepEqual([code, out], [expected, ''], args.join(' '));
      assert.ok(err.length > 0 && !err.includes('    at '), err);
    }
  });

  test('2 with the usage for other words, before anything is opened', async () => {
    for (const args of [
      [],
      ['user'],
      ['user', 'rm', 'a'],
      ['user', 'ls', '--cpus', '1'],
      ['audit', 'verify', 'a', 'b'],
    ]) {
      const { code, err } = await berthWith({}, args);
      assert.equal(code, 2, args.join(' '));
      assert.match(err, /^usage/);
    }
  });

  test('not 0 where no database runs, without a stack', async () => {
    const { code, err } = await berthWith({ BERTH_DATA_DIR: data_dir }, ['user', 'ls']);
    assert.equal(code, 6);
    assert.match(err, /does not run/);
    const away = { ...settings, DATABASE_URL: 'postgresql://berth@127.0.0.1:1/berth' };
    const refused = await berthWith(away, ['user', 'ls']);
    assert.equal(refused.code, 6);
    assert.ok(!refused.err.includes('    at '), refused.err);
  });
});

test('another secret key than the database was filled with is refused: no entry, no backup is made with it', async () => {
  const who = await person();
  await api.instance(who);
  const made = join(data_dir, 'backup');
  const given = await berthWith({ ...settings, BERTH_SECRET_KEY: '0'.repeat(64) }, ['backup', made]);
  assert.deepEqual([given.code, existsSync(made)], [2, false], given.err);
  assert.match(given.err, /BERTH_SECRET_KEY: is not the key of this database; set the right one/);
  // One that a start without the setting has made.
  const env = { BERTH_DATA_DIR: data_dir, DATABASE_URL: api.database.url };
  const found = await berthWith(env, ['org', 'quota', who.org_id, '--instances', '1']);
  assert.equal(found.code, 2, found.err);
  assert.match(found.err, /secret-key: is not the key .* or set BERTH_SECRET_KEY/);
  assert.ok(!(await actions(who.org_id)).includes('org.change_quota by operator'));
});

/** A role as the launcher starts it; it ends by itself. */
const controlPlane = (more: Readonly<Record<string, string>>, ...options: string[]) =>
  new Promise<Ran>((resolve) => {
    const env = { PATH: process.env['PATH'] ?? '', ...settings, BERTH_LISTEN: '127.0.0.1:1', ...more };
    execFile(process.execPath, [MAIN, 'control-plane', ...options], { env }, (error, out, err) =>
      resolve({ code: error === null ? 0 : Number(error.code), out, err }),
    );
  });

test('a password of the first administrator that is one of the most used is refused: exit code 2, and one line without it', async () => {
  for (const password of ['Password1234', 'admin@localhost']) {
    const started = await controlPlane({ BERTH_ADMIN_PASSWORD: password });
    assert.equal(started.code, 2, started.err);
    const lines = started.err.split('\n').filter((line) => line.startsWith('berth: '));
    assert.match(lines.join(), /^berth: BERTH_ADMIN_PASSWORD: its value \(not shown\) is [^,]+$/);
    assert.ok(!started.err.includes(password), started.err);
  }
});

for (const [of, name] of [
  ['a newer Berth', '999999-future.sql'],
  ['a Berth before 0.1.0', '000001-accounts.sql'],
] as const) {
  test(`a database of ${of} is left alone, by the commands and by the server: exit code 2 and one line`, async () => {
    await queryOnce(
      api.database.url,
      'insert into schema_migrations (name, sha256, needs) values ($1, $2, $1)',
      [name, 'f'],
    );
    try {
      const said = `berth: database: the database was made by another version of Berth (migration ${name} is unknown): use that version, or another data folder`;
      const lines = (text: string) => text.split('\n').filter((line) => line.startsWith('berth: '));
      const asked = await berth('user', 'ls');
      assert.deepEqual([asked.code, asked.out, lines(asked.err)], [2, '', [said]], asked.err);
      const started = await controlPlane({});
      assert.deepEqual([started.code, lines(started.err)], [2, [said]], started.err);
    } finally {
      await queryOnce(api.database.url, 'delete from schema_migrations where name = $1', [name]);
    }
  });
}

test('berth migrate applies what is missing; until then a control plane of a fleet refuses to start, and applies nothing', async () => {
  const url = await api.database.createEmpty('fleet');
  const refused = await controlPlane({ DATABASE_URL: url }, '--migrated');
  assert.equal(refused.code, 2, refused.err);
  assert.match(
    refused.err,
    /^berth: database: it lacks the migration 000001-identity.sql: run berth migrate/m,
  );
  const tables = `select count(*)::int as tables from pg_class where relnamespace = 'public'::regnamespace`;
  assert.deepEqual(await queryOnce(url, tables), [{ tables: 0 }]);
  const migrate = () => berthWith({ ...settings, DATABASE_URL: url }, ['migrate']);
  const ran = await migrate();
  assert.deepEqual([ran.code, ran.err], [0, '']);
  assert.match(ran.out, /^applied 000001-identity.sql\n(applied .*\n)+the database is up to date\n$/);
  assert.deepEqual(await migrate(), { code: 0, out: 'the database was up to date\n', err: '' });
  const nowhere = await berthWith({ ...settings, DATABASE_URL: 'postgres://a@127.0.0.1:1/db' }, ['migrate']);
  assert.equal(nowhere.code, 6, nowhere.err);
  assert.match(nowhere.err, /^berth: the database cannot be used: .*ECONNREFUSED/);
});
