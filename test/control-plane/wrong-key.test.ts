/** A control plane starts with the secret key of its database, and with no other. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, test } from 'node:test';
import { claimRootKey, findRootKey } from '../../src/control-plane/fleet/root-key.ts';
import { refuseWrongKey } from '../../src/launcher/start-error.ts';
import { startDatabase } from '../support/database.ts';

const database = await startDatabase();
after(() => database.close());
const { db } = database;
const FILE = { secret_key: '/data/secrets/secret-key' };
const [first, another] = [randomBytes(32), randomBytes(32)];

async function start(key: Buffer, given: Buffer | null): Promise<Buffer> {
  return refuseWrongKey(await claimRootKey(db, key), { secret_key: given }, FILE);
}

test('commands on the server do not decide whose an empty database is', async () => {
  assert.equal(await findRootKey(db, another), undefined);
  assert.deepEqual(await db.selectFrom('installation').selectAll().execute(), []);
});

test('of two control planes that start at once on an empty database, one key stays', async () => {
  const opened = await Promise.all([claimRootKey(db, first), claimRootKey(db, another)]);
  assert.equal(opened.filter((root_key) => root_key === null).length, 1);
  await db.deleteFrom('installation').execute();
});

test('another key is refused although nothing is stored yet, and by commands on the server too', async () => {
  const root_key = await start(first, null);
  assert.equal(root_key.length, 32);
  assert.deepEqual(await start(first, first), root_key, 'made once');
  await assert.rejects(
    start(another, another),
    /^StartError: BERTH_SECRET_KEY: is not the key .*, or unset it/,
  );
  await assert.rejects(start(another, null), {
    message: `${FILE.secret_key}: is not the key of this database; put the right one there, from a backup, or set BERTH_SECRET_KEY`,
    exit_code: 2,
  });
  assert.deepEqual([await findRootKey(db, first), await findRootKey(db, another)], [root_key, null]);
});
