/** A host reads and writes nothing before its object store was found to be the one that the control plane names. */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { FolderStore } from '../object-store/folder-store.ts';
import { WrongStoreError, writeMark } from '../object-store/store-mark.ts';
import { ControlPlaneUnavailable } from '../protocol/client.ts';
import { hostStore } from './host-store.ts';

const MINE = '11111111-1111-4111-8111-111111111111';
const THEIRS = '22222222-2222-4222-8222-222222222222';
const root = await mkdtemp(join(tmpdir(), 'berth-host-store-'));
after(() => rm(root, { recursive: true, force: true }));

async function storeWith(mark: string | null): Promise<FolderStore> {
  const store = await FolderStore.open(join(root, mark ?? 'none'));
  if (mark !== null) await writeMark(store, mark);
  return store;
}

test('the store is used once the control plane has named it', async () => {
  const answers = [new ControlPlaneUnavailable('it starts'), null, MINE];
  const objectStore = async () => {
    const answer = answers.shift() ?? null;
    if (answer instanceof Error) throw answer;
    return { mark: answer };
  };
  const store = hostStore({ objectStore }, await storeWith(MINE));
  await store.check();
  await store.put('a', [Buffer.from('x')]);
  assert.deepEqual(answers, [], 'asked again while it is not known, and not once it is');
});

test("another installation's store, and one without a mark, are refused", async () => {
  for (const mark of [THEIRS, null]) {
    const theirs = await storeWith(mark);
    const store = hostStore({ objectStore: async () => ({ mark: MINE }) }, theirs);
    await assert.rejects(store.check(), WrongStoreError);
    await assert.rejects(store.put('a', [Buffer.from('x')]), WrongStoreError);
    await assert.rejects(theirs.size('a'));
  }
});
