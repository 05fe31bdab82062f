/** Which secret keys open the root key, at each step of a rotation. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, beforeEach, test } from 'node:test';
import { transaction } from '../../src/control-plane/db/pool.ts';
import {
  addSecretKey,
  claimRootKey,
  findRootKey,
  forgetSecretKey,
} from '../../src/control-plane/fleet/root-key.ts';
import { startDatabase } from '../support/database.ts';

const database = await startDatabase();
after(() => database.close());
const { db } = database;
const [old, fresh, third] = [randomBytes(32), randomBytes(32), randomBytes(32)];
let root_key: Buffer;

beforeEach(async () => {
  await db.deleteFrom('installation').execute();
  root_key = (await claimRootKey(db, old)) ?? assert.fail('made');
});

const add = (present: Buffer, added: Buffer) => transaction(db, (tx) => addSecretKey(tx, present, added));
const forget = (present: Buffer, which: 'old' | 'new') =>
  transaction(db, (tx) => forgetSecretKey(tx, present, which));

/** Those of the three that open the root key, as a start and as a command. */
async function opening(): Promise<string[]> {
  const names: string[] = [];
  for (const [name, key] of Object.entries({ old, fresh, third })) {
    const opened = await findRootKey(db, key);
    assert.deepEqual(await claimRootKey(db, key), opened);
    if (opened === null) continue;
    assert.deepEqual(opened, root_key);
    names.push(name);
  }
  return names;
}

test('the root key is no function of the secret key: two databases of one key have two', async () => {
  await db.deleteFrom('installation').execute();
  assert.notDeepEqual(await claimRootKey(db, old), root_key);
});

test('a new key opens the same root key beside the old one, and alone once that is forgotten', async () => {
  assert.deepEqual(await opening(), ['old']);
  assert.equal(await add(old, fresh), 'added');
  assert.deepEqual(await opening(), ['old', 'fresh']);
  assert.equal(await forget(fresh, 'old'), 'forgotten');
  assert.deepEqual(await opening(), ['fresh']);
  assert.equal(await add(fresh, old), 'added', 'and so on, also back');
  assert.deepEqual(await opening(), ['old', 'fresh']);
});

test('each step may be repeated, with either key', async () => {
  await add(old, fresh);
  const before = await db.selectFrom('installation').selectAll().executeTakeFirstOrThrow();
  assert.equal(await add(old, fresh), 'known');
  assert.deepEqual(await db.selectFrom('installation').selectAll().executeTakeFirstOrThrow(), before);
  await forget(fresh, 'old');
  assert.equal(await forget(fresh, 'old'), 'none');
  assert.equal(await forget(fresh, 'new'), 'none');
  assert.deepEqual(await opening(), ['fresh']);
});

test('a rotation that is given up leaves the old key alone', async () => {
  await add(old, fresh);
  assert.equal(await forget(old, 'new'), 'forgotten');
  assert.deepEqual(await opening(), ['old']);
});

test('no step forgets the key that its caller has, nor takes a third one', async () => {
  await add(old, fresh);
  assert.equal(await forget(old, 'old'), 'present');
  assert.equal(await forget(fresh, 'new'), 'present');
  assert.equal(await add(old, old), 'same');
  assert.equal(await add(fresh, fresh), 'same');
  assert.equal(await add(old, third), 'another');
  assert.equal(await add(fresh, third), 'another');
  assert.equal(await add(fresh, old), 'another');
  assert.deepEqual(await opening(), ['old', 'fresh']);
});

test('of two rotations at once, one key stays', async () => {
  const outcomes = await Promise.all([add(old, fresh), add(old, third)]);
  assert.deepEqual([...outcomes].sort(), ['added', 'another']);
  assert.equal((await opening()).length, 2);
});
