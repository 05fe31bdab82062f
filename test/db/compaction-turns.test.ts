/** Which disks checkpoints and compaction take: every one that is due, those that need it most first. */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { checkpointDisks, compactDisks } from '../../src/control-plane/disks/compact-disk.ts';
import { listLongChains, listWasteful } from '../../src/control-plane/disks/compaction-store.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { apiForFile } from '../support/api.ts';
import { makeGenerations } from '../support/generations.ts';

const api = await apiForFile();
const { db, context } = api;
const folder = await mkdtemp(join(tmpdir(), 'berth-turns-'));
after(() => rm(folder, { recursive: true }));
const options = { db, store: await FolderStore.open(folder), disk_keys: context.disk_keys };
const log = createLog('test', 'silent');
const never = new AbortController().signal;

test('one run compacts every disk that is due, those with the most waste first', async () => {
  const owner = await api.person();
  const ids: InstanceId[] = [];
  for (let i = 0; i < 25; i++) {
    const { id } = await api.instance(owner);
    // Without any object: each fails, and is left alone for a while.
    await makeGenerations(db, id, i === 24 ? 35 : 34);
    ids.push(id);
  }
  await sql`update generations set retained = false`.execute(db);
  assert.deepEqual(await listWasteful(db, 1), ids.slice(24));
  assert.deepEqual(await listLongChains(db, 1), ids.slice(24));
  await compactDisks(options, log, AbortSignal.abort());
  assert.equal((await listWasteful(db, 100)).length, 25, 'none is begun at the end');
  await compactDisks(options, log, never);
  assert.deepEqual(await listWasteful(db, 100), []);
  await sql`update disks set compacting_until = null`.execute(db);
  await checkpointDisks(options, log, never);
  assert.deepEqual(await listLongChains(db, 100), []);
});
