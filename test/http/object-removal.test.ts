/** Tasks that remove objects: several at once, and beside those who read objects. No lock of a session is involved. */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { type KeptObjects, keepObjects, objectsAreKept } from '../../src/control-plane/disks/keep-objects.ts';
import { freeDeleted, freeSegments, sweepOrphans } from '../../src/control-plane/disks/remove-objects.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { segmentOf } from '../support/scripted-agent.ts';
import { instanceIn } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
const { agent, db, context } = api;
const owner = await api.person();
const folder = await mkdtemp(join(tmpdir(), 'berth-removal-'));
const store = await FolderStore.open(folder);
after(() => rm(folder, { recursive: true, force: true }));

async function objects(id: InstanceId): Promise<string[]> {
  const keys: string[] = [];
  for await (const { key } of store.list(`disks/${id}/`)) keys.push(key);
  return keys;
}
async function deleted(): Promise<{ id: InstanceId; key: string }> {
  const { id } = await instanceIn(api, owner, 'running');
  await agent.commit(id, 1);
  const { key } = segmentOf(id, 1, 1);
  await store.put(key, [Buffer.from('data')]);
  await api.as(owner).delete(`/v1/instances/${id}`);
  await agent.deleted(id);
  return { id, key };
}
const known = async (key: string) =>
  (await db.selectFrom('segments').select('key').where('key', '=', key).execute()).length > 0;
const changed = (change: Partial<Pick<FolderStore, 'list' | 'delete'>>) =>
  ({
    list: (prefix: string) => store.list(prefix),
    delete: (key: string) => store.delete(key),
    ...change,
  }) as Partial<FolderStore> as FolderStore;

test('two control planes that delete one instance at once delete it whole, and count its use once', async () => {
  const { id, key } = await deleted();
  await sql`update instances set created_at = now() - interval '3 hours' where id = ${id}`.execute(db);
  await sql`update usage_clock set stored_until = now() - interval '1 hour'`.execute(db);
  const both = Promise.withResolvers<void>();
  let removing = 0;
  const slow = changed({
    delete: async (each: string) => {
      removing += 1;
      if (removing === 2) both.resolve();
      await both.promise;
      await store.delete(each);
    },
  });
  await Promise.all([freeDeleted(db, slow, context.log), freeDeleted(db, slow, context.log)]);
  assert.deepEqual([removing, await objects(id), await known(key)], [2, [], false]);
  const used = db.selectFrom('usage_hours').select('stored_byte_seconds').where('instance_id', '=', id);
  const bytes = (await used.execute()).reduce((sum, row) => sum + row.stored_byte_seconds, 0);
  const hours = bytes / 4_096 / 3_600;
  assert.ok(hours > 0.9 && hours < 1.5, `${hours} hours`);
});

test('a reader that comes in the middle of a removal loses nothing that was not chosen before', async () => {
  const [one, two] = [await deleted(), await deleted()];
  let reader: KeptObjects | undefined;
  const read = changed({
    list: async function* (prefix: string) {
      yield* store.list(prefix);
      reader ??= await keepObjects(db);
    },
  });
  await freeDeleted(db, read, context.log);
  assert.deepEqual([await objects(one.id), await objects(two.id)], [[one.key], [two.key]]);
  await db.deleteFrom('segment_holders').where('key', 'in', [one.key, two.key]).execute();
  await freeSegments(db, store, context.log, 0);
  await sweepOrphans(db, store, context.log, 0);
  assert.deepEqual([await objects(one.id), await objects(two.id)], [[one.key], [two.key]]);
  await reader?.check();
  await reader?.release();
  await freeDeleted(db, store, context.log);
  assert.deepEqual([await objects(one.id), await objects(two.id)], [[], []]);
});

test('a reader whose time is over holds nothing up, and its check says so', async () => {
  const { id, key } = await deleted();
  const dead = await keepObjects(db, 0.001);
  await until('its time is over', async () => !(await objectsAreKept(db)));
  await freeDeleted(db, store, context.log);
  assert.deepEqual([await objects(id), await known(key)], [[], false]);
  await assert.rejects(dead.check(), /may have been removed/);
  await dead.release();
});
