/**
 * Disks in the database: their keys, the chain of their generations, who holds which segment, and the tasks that remove objects, several at
 * once and beside those who read objects.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, describe, test } from 'node:test';
import { sql } from 'kysely';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { markKeyUsed } from '../../src/control-plane/disks/data-key-store.ts';
import { openDataKeys, shareDataKeys } from '../../src/control-plane/disks/data-keys.ts';
import { type KeptObjects, keepObjects, objectsAreKept } from '../../src/control-plane/disks/keep-objects.ts';
import { freeDeleted, freeSegments, sweepOrphans } from '../../src/control-plane/disks/remove-objects.ts';
import { holdSegments } from '../../src/control-plane/disks/segment-store.ts';
import { readLayers } from '../../src/control-plane/disks/store.ts';
import { ensureHost } from '../../src/control-plane/fleet/host-store.ts';
import { hashToken } from '../../src/control-plane/identity/tokens.ts';
import { BLOCK_BYTES, segmentKey } from '../../src/disk-format/segment-format.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import { ControlPlaneClient, DiskElsewhere } from '../../src/protocol/client.ts';
import type { MapRef, SegmentRef } from '../../src/protocol/types.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { FACTS, segmentOf } from '../support/scripted-agent.ts';
import { instanceIn, stateOf } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const api = await apiForFile();
const { agent, db, context } = api;
const owner = await api.person();
const other_token = randomBytes(32).toString('hex');
await ensureHost(db, 'elsewhere', hashToken(other_token));
const other = new ControlPlaneClient({ address: api.internal_origin, token: other_token });
const folder = await mkdtemp(join(tmpdir(), 'berth-disks-'));
const store = await FolderStore.open(folder);
after(async () => {
  await other.close();
  await rm(folder, { recursive: true, force: true });
});

async function objects(prefix: string): Promise<string[]> {
  const keys: string[] = [];
  for await (const { key } of store.list(prefix)) keys.push(key);
  return keys.sort();
}

function keyRows(instance_id: InstanceId) {
  return db.selectFrom('data_keys').selectAll().where('instance_id', '=', instance_id).execute();
}

async function holders(key: string): Promise<string[]> {
  const rows = await db.selectFrom('segment_holders').select('instance_id').where('key', '=', key).execute();
  return rows.map(({ instance_id }) => instance_id).sort();
}

async function known(key: string): Promise<boolean> {
  const rows = await db.selectFrom('segments').select('key').where('key', '=', key).execute();
  return rows.length === 1;
}

describe('the data key', () => {
  test('is created with the instance, and is only wrapped in the database', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const rows = await keyRows(id);
    assert.deepEqual(rows.map(({ use }) => use).sort(), ['disk', 'memory']);
    const row = rows.find(({ use }) => use === 'disk') ?? assert.fail();
    assert.match(row.key_id, /^dk_[0-9a-f]{32}$/);
    const opened = await openDataKeys(db, context.disk_keys, id);
    assert.equal(opened?.own.key.length, 32);
    assert(!row.wrapped.includes(Buffer.from(opened.own.key)));
    assert(!row.wrapped.includes(Buffer.from(opened.own.key).toString('base64')));
  });

  test('goes with the head to the host that has the VM, and to no other', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const own = (await openDataKeys(db, context.disk_keys, id))?.own ?? assert.fail();
    const head = await agent.client.head(id);
    const key = Buffer.from(own.key).toString('base64');
    const sent = head?.keys.find(({ use }) => use === 'disk');
    assert.deepEqual(sent, { key_id: own.key_id, key, use: 'disk' });
    assert.equal(head?.encryption, true);
    await assert.rejects(other.head(id), DiskElsewhere);
    const { id: at_rest } = await instanceIn(api, owner, 'stopping');
    await agent.stopped(at_rest);
    assert.deepEqual((await agent.client.head(at_rest))?.keys, [], 'and while it runs alone');
    const { id: unplaced } = await api.instance(owner);
    await assert.rejects(agent.client.head(unplaced), DiskElsewhere);
  });

  test('is created on demand, once, for an instance without one', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await db.deleteFrom('data_keys').where('instance_id', '=', id).execute();
    const heads = await Promise.all([agent.client.head(id), agent.client.head(id), agent.client.head(id)]);
    const keys = heads.map((head) => JSON.stringify(head?.keys));
    assert.equal(new Set(keys).size, 1);
    const rows = await keyRows(id);
    assert.deepEqual(rows.map(({ use }) => use).sort(), ['disk', 'memory']);
    const named = (list: readonly { key_id: string }[]) => list.map(({ key_id }) => key_id).sort();
    assert.deepEqual(named(heads[0]?.keys ?? []), named(rows));
  });

  test('cannot be unwrapped for another instance or purpose', async () => {
    const [one, two] = [await instanceIn(api, owner, 'stopped'), await instanceIn(api, owner, 'stopped')];
    const [row] = await keyRows(one.id);
    const { wrapped } = row ?? assert.fail();
    await db.updateTable('data_keys').set({ wrapped }).where('instance_id', '=', two.id).execute();
    await assert.rejects(openDataKeys(db, context.disk_keys, two.id), /does not open/);
    const name = `dk_${'0'.repeat(32)}`;
    const disk_key = db.updateTable('data_keys').where('use', '=', 'disk');
    await disk_key.set({ key_id: name }).where('instance_id', '=', one.id).execute();
    await assert.rejects(openDataKeys(db, context.disk_keys, one.id), /does not open/);
  });

  test('is deleted before DELETE is answered, and before any object', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    assert.equal((await api.as(owner).delete(`/v1/instances/${id}`)).status, 202);
    assert.deepEqual(await keyRows(id), []);
    const head = await agent.client.head(id);
    // Still to be encrypted, and nothing to do it with: a host that asks now can write nothing.
    assert.deepEqual([head?.keys, head?.encryption], [[], true]);
  });

  test('shared with another instance can be unwrapped there, and outlives the first', async () => {
    const [parent, fork] = [await instanceIn(api, owner, 'stopped'), await instanceIn(api, owner, 'stopped')];
    const before = (await openDataKeys(db, context.disk_keys, parent.id))?.own ?? assert.fail();
    await markKeyUsed(db, parent.id, before.key_id);
    await transaction(db, (tx) => shareDataKeys(tx, context.disk_keys, parent.id, fork.id, 0));
    await api.as(owner).delete(`/v1/instances/${parent.id}`);
    const of_fork = (await openDataKeys(db, context.disk_keys, fork.id)) ?? assert.fail();
    assert.equal(of_fork.keys.length, 3);
    assert.notEqual(of_fork.own.key_id, before.key_id);
    const shared = of_fork.keys.find(({ key_id }) => key_id === before.key_id);
    assert.deepEqual(shared?.key, before.key);
  });
});

describe('a commit', () => {
  test('records its segments once, held by its instance', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    await agent.commit(id, 1);
    await agent.commit(id, 1);
    assert.deepEqual(await holders(segmentOf(id, 1, 1).key), [id]);
    const late = segmentOf(id, 1, 1, '1a7e1a7e');
    assert.equal((await agent.commit(id, 1, { segments: [late] })).outcome, 'fenced');
    assert.equal(await known(late.key), false);
  });

  /** Named as the segment writer does it. */
  const manySegments = async (id: InstanceId, count: number, generation: number): Promise<SegmentRef[]> => {
    await db
      .updateTable('disks')
      .set({ size_bytes: 2 ** 40 })
      .where('instance_id', '=', id)
      .execute();
    const own = (await openDataKeys(db, context.disk_keys, id))?.own ?? assert.fail();
    return Array.from({ length: count }, (_, part) => ({
      key: segmentKey(`disks/${id}`, { epoch: 1, generation, attempt: 0xdeadbeef, part }),
      ...{ size_bytes: 6_293_904, entries: 95, key_id: own.key_id },
    }));
  };

  test("with more segments than a statement's parameters is accepted", async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const segments = await manySegments(id, 22_000, 1);
    assert.equal((await agent.commit(id, 1, { segments })).outcome, 'committed');
    assert.deepEqual((await agent.client.head(id))?.layers, segments);
    assert.deepEqual(await holders(segments.at(-1)?.key ?? ''), [id]);
  });

  test('with all segments of the largest disk is not too large to be read', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const segments = await manySegments(id, Math.ceil(2 ** 40 / BLOCK_BYTES / 95), 2);
    assert.equal((await agent.commit(id, 2, { segments })).outcome, 'fenced');
  });
});

describe('the chain', () => {
  const segment = (id: string, name: string): SegmentRef => ({
    key: `disks/${id}/${name}`,
    size_bytes: 1,
    entries: 1,
    key_id: null,
  });

  /** A generation as a restore or compaction leaves it. */
  async function generation(
    instance_id: InstanceId,
    number: number,
    parent: number | null,
    { segments = [], map = null }: { segments?: SegmentRef[]; map?: MapRef | null } = {},
  ): Promise<void> {
    await db
      .insertInto('generations')
      .values({
        ...{ instance_id, generation: number, parent, epoch: 1, bytes: 0, consistency: 'crash', name: null },
        segments: JSON.stringify(segments),
        map: map && JSON.stringify(map),
      })
      .execute();
  }
  const keysOf = async (id: InstanceId, number: number) =>
    (await readLayers(db, id, number)).map(({ key }) => key.slice(`disks/${id}/`.length));

  test('follows parents, not numbers, so generations that a restore abandoned are not in it', async () => {
    const { id } = await instanceIn(api, owner, 'stopped');
    await generation(id, 1, null, { segments: [segment(id, 'a'), segment(id, 'b')] });
    await generation(id, 2, 1, { segments: [segment(id, 'c')] });
    await generation(id, 3, 1);
    await generation(id, 4, 3, { segments: [segment(id, 'd')] });
    assert.deepEqual(await keysOf(id, 0), []);
    assert.deepEqual(await keysOf(id, 2), ['a', 'b', 'c']);
    assert.deepEqual(await keysOf(id, 4), ['a', 'b', 'd']);
  });

  test('is read from maps where they exist, and ends at a full one', async () => {
    const { id } = await instanceIn(api, owner, 'stopped');
    const map = (name: string, full: boolean) => ({ ...segment(id, name), full });
    await generation(id, 5, null, { segments: [segment(id, 'a')] });
    await generation(id, 6, 5, { segments: [segment(id, 'b')], map: map('full', true) });
    await generation(id, 7, 6, { segments: [segment(id, 'c')], map: map('delta', false) });
    await generation(id, 8, 7, { segments: [segment(id, 'd')] });
    assert.deepEqual(await keysOf(id, 8), ['full', 'delta', 'd']);
    assert.deepEqual(await keysOf(id, 5), ['a']);
  });

  test('has neither gaps nor cycles', async () => {
    const { id } = await instanceIn(api, owner, 'stopped');
    await assert.rejects(generation(id, 3, 2), /generations_parent_fkey/);
    await generation(id, 1, null);
    await generation(id, 2, 1);
    await assert.rejects(generation(id, 4, 4), /generations_parent/);
    const first = db.deleteFrom('generations').where('instance_id', '=', id).where('generation', '=', 1);
    await assert.rejects(first.execute(), /generations_parent_fkey/);
    await assert.rejects(readLayers(db, id, 9), /generation 9/);
  });
});

describe('segments', () => {
  /** An instance with one generation of one segment that is in the store. */
  async function withSegment(): Promise<{ id: InstanceId; key: string }> {
    const { id } = await instanceIn(api, owner, 'running');
    await agent.commit(id, 1);
    const { key } = segmentOf(id, 1, 1);
    await store.put(key, [Buffer.from('data')]);
    return { id, key };
  }
  async function remove(id: InstanceId): Promise<void> {
    await api.as(owner).delete(`/v1/instances/${id}`);
    await agent.deleted(id);
    await freeDeleted(db, store, context.log);
  }
  const free = (delay_ms = 3_600_000) => freeSegments(db, store, context.log, delay_ms);

  test('that another instance holds outlive their own, and are deleted an hour after the last holder', async () => {
    const { id, key } = await withSegment();
    const fork = await withSegment();
    await store.put(`disks/${id}/leftover`, [Buffer.from('of a flush that was killed')]);
    await holdSegments(db, fork.id, [key]);
    await remove(id);
    assert.deepEqual(await objects(`disks/${id}/`), [key]);
    assert.deepEqual(await holders(key), [fork.id]);
    await free(0);
    assert.equal(await known(key), true, 'it has a holder');
    await remove(fork.id);
    assert.deepEqual(await objects(`disks/${fork.id}/`), [], 'what it held alone goes at once');
    await free();
    assert.deepEqual(await objects(`disks/${id}/`), [key], 'not before its hour');
    await free(0);
    assert.deepEqual([await objects(`disks/${id}/`), await known(key)], [[], false]);
  });

  test('that lose both holders concurrently are removed', async () => {
    const { id, key } = await withSegment();
    const fork = await withSegment();
    await holdSegments(db, fork.id, [key]);
    await store.put(`disks/${id}/last`, [Buffer.from('removed after it was seen who holds the others')]);
    await api.as(owner).delete(`/v1/instances/${id}`);
    await agent.deleted(id);
    const letting_go = Object.create(store, {
      list: { value: (prefix: string) => store.list(prefix) },
      delete: {
        value: async (each: string) => {
          const its = db.deleteFrom('segment_holders').where('instance_id', '=', fork.id);
          await its.where('key', '=', key).execute();
          await store.delete(each);
        },
      },
    }) as FolderStore;
    await freeDeleted(db, letting_go, context.log);
    assert.deepEqual([await objects(`disks/${id}/`), await known(key)], [[key], true]);
    await free(0);
    assert.deepEqual([await objects(`disks/${id}/`), await known(key)], [[], false]);
  });

  test('that get a holder within the hour stay', async () => {
    const { id, key } = await withSegment();
    const rows = db.deleteFrom('segment_holders').where('key', '=', key);
    await rows.execute();
    await free();
    await holdSegments(db, id, [key]);
    await free();
    // And its hour begins anew when that one goes.
    await db
      .updateTable('segments')
      .set({ unheld_at: sql`unheld_at - interval '2 hours'` })
      .where('key', '=', key)
      .execute();
    await rows.execute();
    await free();
    assert.deepEqual(await objects(`disks/${id}/`), [key]);
  });

  test('whose object cannot be removed stay recorded, and are tried again by the next run', async () => {
    const { id, key } = await withSegment();
    await db.deleteFrom('segment_holders').where('key', '=', key).execute();
    const broken = Object.create(store, {
      delete: { value: () => Promise.reject(new Error('the bucket is away')) },
    }) as FolderStore;
    await assert.rejects(freeSegments(db, broken, context.log, 0), /the bucket is away/);
    assert.equal(await known(key), true);
    await Promise.all(Array.from({ length: 5 }, () => free(0)));
    assert.deepEqual([await objects(`disks/${id}/`), await known(key)], [[], false]);
  });

  test('that are being removed get no new holder', async () => {
    const { id, key } = await withSegment();
    await db.deleteFrom('segment_holders').where('key', '=', key).execute();
    const [removing, go_on] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
    const slow = Object.create(store, {
      delete: {
        value: async (each: string) => {
          removing.resolve();
          await go_on.promise;
          await store.delete(each);
        },
      },
    }) as FolderStore;
    const freeing = freeSegments(db, slow, context.log, 0);
    await removing.promise;
    const refused = assert.rejects(holdSegments(db, id, [key]), /segment_holders_key_fkey/);
    go_on.resolve();
    await freeing;
    await refused;
    assert.deepEqual(await holders(key), []);
  });
});

test("dirty bytes are those of the newest VM's host, until it has saved everything", async () => {
  const { id } = await instanceIn(api, owner, 'running');
  const shown = async () => (await stateOf(api, owner, id)).disk.dirty_bytes;
  const other = new ControlPlaneClient({ address: api.internal_origin, token: other_token });
  after(() => other.close());
  await other.heartbeat({ facts: FACTS, disks: [{ instance_id: id, dirty_bytes: 99 }] });
  await db.updateTable('hosts').set({ last_seen_at: null }).where('name', '=', 'elsewhere').execute();
  assert.equal(await shown(), 0);
  await agent.heartbeat([{ instance_id: id, dirty_bytes: 5_000 }]);
  assert.equal(await shown(), 5_000);
  // What can be known after a death is a bound. A stop that finds nothing to save has no commit that would say so.
  await agent.failed(id);
  await agent.heartbeat([{ instance_id: id, dirty_bytes: 7_000 }]);
  assert.equal(await shown(), 7_000);
  await api.as(owner).delete(`/v1/instances/${id}/vm`);
  await agent.stopped(id);
  assert.equal(await shown(), 0);
  await agent.heartbeat([{ instance_id: id, dirty_bytes: 7_000 }]);
  assert.equal(await shown(), 0, 'one that was on its way');
});

const removal_folder = await mkdtemp(join(tmpdir(), 'berth-removal-'));
after(() => rm(removal_folder, { recursive: true, force: true }));

async function objectsAt(id: InstanceId): Promise<string[]> {
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
const isKnown = async (key: string) =>
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
  assert.deepEqual([removing, await objectsAt(id), await isKnown(key)], [2, [], false]);
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
  assert.deepEqual([await objectsAt(one.id), await objectsAt(two.id)], [[one.key], [two.key]]);
  await db.deleteFrom('segment_holders').where('key', 'in', [one.key, two.key]).execute();
  await freeSegments(db, store, context.log, 0);
  await sweepOrphans(db, store, context.log, 0);
  assert.deepEqual([await objectsAt(one.id), await objectsAt(two.id)], [[one.key], [two.key]]);
  await reader?.check();
  await reader?.release();
  await freeDeleted(db, store, context.log);
  assert.deepEqual([await objectsAt(one.id), await objectsAt(two.id)], [[], []]);
});

test('a reader whose time is over holds nothing up, and its check says so', async () => {
  const { id, key } = await deleted();
  const dead = await keepObjects(db, 0.001);
  await until('its time is over', async () => !(await objectsAreKept(db)));
  await freeDeleted(db, store, context.log);
  assert.deepEqual([await objectsAt(id), await isKnown(key)], [[], false]);
  await assert.rejects(dead.check(), /may have been removed/);
  await dead.release();
});
