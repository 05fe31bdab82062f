/** `berth secret-key …` on the database of an API in this process: another key, and what the old one opens then. */
import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { chmod, mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { sql } from 'kysely';
import { withSnapshot } from '../../src/control-plane/backup/table-data.ts';
import { hostsCertificate } from '../../src/control-plane/fleet/hosts-certificate.ts';
import { findRootKey } from '../../src/control-plane/fleet/root-key.ts';
import { authoritiesOf } from '../../src/control-plane/secrets/authority.ts';
import { Sealer } from '../../src/shared/seal.ts';
import { filesBelow, read } from '../house/imports.ts';
import { apiForFile } from '../support/api.ts';
import { untilLocksAreWaitedFor } from '../support/lock-waits.ts';
import { serverCliForFile } from '../support/server-cli.ts';
import { until } from '../support/waiting.ts';
import { makeWebhook } from '../support/webhooks.ts';

const api = await apiForFile();
const { settings, berthWith, actions } = await serverCliForFile(api);
const folder = await mkdtemp(join(tmpdir(), 'berth-keys-'));
after(() => rm(folder, { recursive: true, force: true }));
const BERTH = join(import.meta.dirname, '..', '..', 'bin', 'berth');

let files = 0;
/** A file that does not exist yet. */
function newFile(): string {
  files += 1;
  return join(folder, `key-${files}`);
}
const keyOf = async (file: string) => Buffer.from((await readFile(file, 'utf8')).trim(), 'hex');
/** The key of the settings; each test leaves the database with this one alone. */
let present = api.secret_key;
const withKey = (key: Buffer, ...args: string[]) =>
  berthWith({ ...settings, BERTH_SECRET_KEY: key.toString('hex') }, ['secret-key', ...args]);
const berth = (...args: string[]) => withKey(present, ...args);
const opens = async (key: Buffer) => {
  const root_key = await findRootKey(api.db, key);
  return root_key?.equals(api.context.root_key) === true;
};

/** Replaces the key by that in the file, and forgets the old one. Returns the old one. */
async function finish(file: string): Promise<Buffer> {
  const old = present;
  present = await keyOf(file);
  const ran = await berth('forget-old');
  assert.deepEqual([ran.code, ran.err], [0, ''], ran.out);
  return old;
}

describe('rotate', () => {
  test('makes a key in a missing file, says what comes next, and may be repeated', async () => {
    const file = newFile();
    const first = await berth('rotate', file);
    assert.deepEqual([first.code, first.err], [0, '']);
    assert.match(first.out, /^Two keys open the database now: .* in .*key-1\.\nNext: set BERTH_SECRET_KEY/);
    assert.equal((await stat(file)).mode & 0o777, 0o600);
    const made = await keyOf(file);
    assert.ok(!first.out.includes(made.toString('hex')));
    assert.deepEqual([await opens(present), await opens(made)], [true, true]);
    const again = await berth('rotate', file);
    assert.deepEqual([again.code, again.out], [0, first.out]);
    assert.deepEqual(await keyOf(file), made);
    await finish(file);
  });

  test('takes the key of a file that exists, makes that private, and names the file of the data folder', async () => {
    const file = newFile();
    const given = randomBytes(32);
    await writeFile(file, `${given.toString('base64')}\n`);
    await chmod(file, 0o644);
    const data_dir = settings['BERTH_DATA_DIR'] ?? '';
    const in_folder = join(data_dir, 'secrets', 'secret-key');
    await writeFile(in_folder, `${present.toString('hex')}\n`);
    const { DATABASE_URL = '' } = settings;
    const ran = await berthWith({ BERTH_DATA_DIR: data_dir, DATABASE_URL }, ['secret-key', 'rotate', file]);
    assert.deepEqual([ran.code, ran.err], [0, '']);
    assert.ok(ran.out.includes(`Next: mv ${file} ${in_folder} && berth secret-key forget-old\n`), ran.out);
    assert.equal((await stat(file)).mode & 0o777, 0o600);
    assert.equal(await opens(given), true);
    await writeFile(file, `${given.toString('hex')}\n`);
    await finish(file);
  });

  test('takes a key from a pipe', async () => {
    const given = randomBytes(32);
    const typed = `echo ${given.toString('hex')} | ${BERTH} secret-key rotate /dev/stdin`;
    const env = { PATH: process.env['PATH'] ?? '', ...settings, BERTH_SECRET_KEY: present.toString('hex') };
    assert.deepEqual(await once(execFile('sh', ['-c', typed], { env }), 'exit'), [0, null]);
    assert.equal(await opens(given), true);
    assert.equal((await berth('forget-new')).code, 0);
  });

  test('refuses a file without a key, one that cannot be, and the present key, in one line; nothing changes', async () => {
    const [short, same] = [newFile(), newFile()];
    await writeFile(short, 'abc\n');
    await writeFile(same, present.toString('hex'));
    const before = await api.db.selectFrom('installation').selectAll().execute();
    for (const [file, said] of [
      [short, /has no key; expected 32 bytes/],
      [folder, /cannot be read/],
      [join(folder, 'missing', 'key'), /cannot be written/],
      [same, /is the present key; name a file that does not exist yet/],
    ] as const) {
      const ran = await berth('rotate', file);
      assert.deepEqual([ran.code, ran.out], [2, ''], ran.err);
      assert.match(ran.err, said);
      assert.match(ran.err, /^berth: [^\n]+\n$/);
    }
    assert.deepEqual(await api.db.selectFrom('installation').selectAll().execute(), before);
  });

  test('a second new key is refused until the first one is finished or given up', async () => {
    const [file, other] = [newFile(), newFile()];
    assert.equal((await berth('rotate', file)).code, 0);
    const refused = await berth('rotate', other);
    assert.equal(refused.code, 5);
    assert.match(refused.err, /is not the key that is replacing .*\n {2}next: berth secret-key forget-old/);
    await assert.rejects(stat(other), { code: 'ENOENT' });
    const given_up = await berth('forget-new');
    assert.deepEqual([given_up.code, given_up.err], [0, '']);
    assert.equal(await opens(await keyOf(file)), false);
    assert.equal((await berth('rotate', other)).code, 0);
    await finish(other);
  });
});

describe('forget-old and forget-new', () => {
  test('never forget the key of their caller', async () => {
    const file = newFile();
    await berth('rotate', file);
    for (const [key, which] of [
      [present, 'old'],
      [await keyOf(file), 'new'],
    ] as const) {
      const ran = await withKey(key, `forget-${which}`);
      assert.equal(ran.code, 5, ran.out);
      assert.match(
        ran.err,
        new RegExp(`^berth: BERTH_SECRET_KEY: is the ${which} key itself\n {2}next: set the other`),
      );
    }
    assert.deepEqual([await opens(present), await opens(await keyOf(file))], [true, true]);
    await finish(file);
  });

  test('afterwards the old key is refused in one line, by every command; a repetition changes nothing', async () => {
    const file = newFile();
    await berth('rotate', file);
    const old = await finish(file);
    const { code, err } = await withKey(old, 'rotate', newFile());
    assert.deepEqual([code, err.split('\n').length], [2, 2], err);
    assert.match(err, /^berth: BERTH_SECRET_KEY: is not the key of this database; /);
    const again = await berth('forget-old');
    assert.deepEqual(
      [again.code, again.out],
      [0, 'Only one key opens the database: there is none to forget.\n'],
    );
  });

  test('what they did is in the audit log of the organisation that the installation began with', async () => {
    await api.person();
    const { id } = await api.db
      .selectFrom('organisations')
      .select('id')
      .orderBy('id')
      .executeTakeFirstOrThrow();
    const from = (await actions(id)).length;
    const file = newFile();
    await berth('rotate', file);
    await finish(file);
    assert.deepEqual((await actions(id)).slice(from), [
      'secret_key.rotate by operator',
      'secret_key.forget by operator',
    ]);
  });
});

/** Runs the command up to the commit of its change, and kills it there. `then` decides whether that commit happens. */
function killedAtCommit(args: readonly string[], then: 'lost' | 'committed'): Promise<void> {
  return api.db.connection().execute(async (held) => {
    await sql`select pg_advisory_lock(78)`.execute(held);
    const env = { PATH: process.env['PATH'] ?? '', ...settings, BERTH_SECRET_KEY: present.toString('hex') };
    const child = execFile(BERTH, ['secret-key', ...args], { env }, () => undefined);
    const gone = once(child, 'exit');
    await untilLocksAreWaitedFor(api.db, 1);
    child.kill('SIGKILL');
    await gone;
    if (then === 'lost') {
      await sql`
        select pg_terminate_backend(pid) from pg_stat_activity
        where datname = current_database() and wait_event_type = 'Lock'`.execute(held);
      await untilLocksAreWaitedFor(api.db, 0);
    }
    await sql`select pg_advisory_unlock(78)`.execute(held);
  });
}

describe('killed at its commit', () => {
  const hold = async () => {
    await sql`
      create function wait_at_commit() returns trigger language plpgsql as
      'begin perform pg_advisory_xact_lock(78); return null; end'`.execute(api.db);
    await sql`
      create constraint trigger wait_at_commit after update on installation
      deferrable initially deferred for each row execute function wait_at_commit()`.execute(api.db);
  };
  const release = () => sql`drop function wait_at_commit cascade`.execute(api.db);

  for (const then of ['lost', 'committed'] as const) {
    test(`rotate, ${then}: the present key opens; repeated, it goes on with the key of its file`, async () => {
      const file = newFile();
      await hold();
      await killedAtCommit(['rotate', file], then).finally(release);
      const made = await keyOf(file);
      await until('the end of its transaction', async () => (await opens(made)) === (then === 'committed'));
      assert.equal(await opens(present), true);
      assert.equal((await berth('rotate', file)).code, 0);
      assert.deepEqual(await keyOf(file), made);
      assert.equal(await opens(made), true);
      await finish(file);
    });

    test(`forget-old, ${then}: the new key opens; repeated, it alone`, async () => {
      const file = newFile();
      await berth('rotate', file);
      const old = present;
      present = await keyOf(file);
      await hold();
      await killedAtCommit(['forget-old'], then).finally(release);
      await until('the end of its transaction', async () => (await opens(old)) === (then === 'lost'));
      assert.equal(await opens(present), true);
      assert.equal((await berth('forget-old')).code, 0);
      assert.deepEqual([await opens(present), await opens(old)], [true, false]);
    });
  }
});

/** Whatever the program derives a key for. */
const PURPOSES = [
  ...new Set(
    filesBelow('src', ['.ts']).flatMap((path) =>
      [...read(path).matchAll(/'(berth [a-z ]+ v1)'/g)].map(([, purpose = '']) => purpose),
    ),
  ),
];

/** The purposes for which values of the database open with this key. */
async function openedBy(key: Buffer): Promise<string[]> {
  const sealers = PURPOSES.map((purpose) => ({ purpose, sealer: new Sealer(key, purpose) }));
  const found = new Set<string>();
  await withSnapshot(api.database.url, async (snapshot) => {
    for await (const line of snapshot.lines()) {
      const values = [...line.matchAll(/\\x([0-9a-f]{56,})/g)].map(([, hex = '']) => Buffer.from(hex, 'hex'));
      if (values.length === 0) continue;
      // What a value is bound to: a constant, or ids and names of its row.
      const words = ['authority', ...(line.match(/\b[a-z]+_[0-9a-z]{26,}\b|\b[A-Z_]{3,}\b/g) ?? [])];
      const pairs = words.flatMap((a) => words.flatMap((b) => [`${a} ${b}`, JSON.stringify([a, b])]));
      const bound = ['root key', 'hosts certificate', ...words, ...pairs];
      for (const { purpose, sealer } of sealers)
        for (const value of values)
          if (bound.some((to) => sealer.open(value, to) !== null)) found.add(purpose);
    }
  });
  return [...found].sort();
}

test('after forget-old no value of the whole database opens with the old key; before, only the root key did', async () => {
  const { context, db } = api;
  const owner = await api.person();
  const client = api.as(owner);
  const { id } = await api.instance(owner);
  const secret = { value: 'sk-1', hosts: ['api.example.com'] };
  assert.equal((await client.put(`/v1/instances/${id}/secrets/TOKEN`, secret)).status, 204);
  await makeWebhook(api, owner, 'http://127.0.0.1:9/hook');
  const certificate = await hostsCertificate(db, context.root_key);
  const authority = await authoritiesOf(db, context.secrets, [id]);
  const of_root = await openedBy(context.root_key);
  const SEALED = ['data keys', 'hosts certificate', 'secrets', 'webhooks'].map((name) => `berth ${name} v1`);
  assert.deepEqual(of_root, SEALED, 'the search finds what is sealed');

  const file = newFile();
  await berth('rotate', file);
  const made_key = await keyOf(file);
  assert.deepEqual(await openedBy(present), ['berth root key v1']);
  assert.deepEqual(await openedBy(made_key), ['berth root key v1']);
  const old = await finish(file);
  assert.deepEqual(await openedBy(old), []);
  assert.deepEqual(await openedBy(made_key), ['berth root key v1']);
  assert.deepEqual(await openedBy(context.root_key), of_root);
  assert.deepEqual(await hostsCertificate(db, context.root_key), certificate);
  assert.deepEqual(await authoritiesOf(db, context.secrets, [id]), authority);
});
