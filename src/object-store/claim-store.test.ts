/** Whose an object store is: claimed once, and used by nobody else. */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { claimStore, type KnownMarks, ownStore } from './claim-store.ts';
import { FolderStore } from './folder-store.ts';
import { ObjectStoreUnavailableError } from './object-store.ts';
import { MARK_KEY, readMark, WrongStoreError } from './store-mark.ts';

const root = await mkdtemp(join(tmpdir(), 'berth-claim-'));
after(() => rm(root, { recursive: true, force: true }));
let folders = 0;
const newStore = () => FolderStore.open(join(root, String(folders++)));

class Known implements KnownMarks {
  id: string | undefined;
  marked = false;
  /** Killed once it would say that the mark is there. */
  dies = false;
  intend = async (id: string) => {
    this.id ??= id;
    return { id: this.id, marked: this.marked };
  };
  record = async (id: string) => {
    assert.equal(id, this.id);
    if (this.dies) throw new Error('killed');
    this.marked = true;
  };
}

test('a store without a mark, with objects or without, is claimed by who comes first, and by nobody else', async () => {
  const store = await newStore();
  await store.put('disks/inst_old/seg/1/1-0-0', [Buffer.from('of before')]);
  const [first, second] = [new Known(), new Known()];
  await claimStore(first, store);
  assert.equal(await readMark(store), first.id);
  await claimStore(first, store);
  await assert.rejects(claimStore(second, store), WrongStoreError);
  await assert.rejects(claimStore(second, store), { reason: 'it belongs to another installation of Berth' });
  assert.equal(second.marked, false);
});

test('of two installations that claim a store at the same moment one has it', async () => {
  const store = await newStore();
  const both = [new Known(), new Known()];
  const claims = await Promise.allSettled(both.map((known) => claimStore(known, store)));
  assert.deepEqual(claims.map(({ status }) => status).sort(), ['fulfilled', 'rejected']);
  const there = await readMark(store);
  assert.deepEqual(
    both.map(({ id, marked }) => marked && id === there).sort(),
    [false, true],
    'who was refused counts on nothing',
  );
});

test('a process that is killed between the mark and its record is followed by one that goes on', async () => {
  const store = await newStore();
  const known = new Known();
  known.dies = true;
  await assert.rejects(claimStore(known, store), /killed/);
  known.dies = false;
  await claimStore(known, store);
  assert(known.marked);
});

test('a store without the mark that was written, and one whose mark is something else, are refused', async () => {
  const known = new Known();
  await claimStore(known, await newStore());
  await assert.rejects(claimStore(known, await newStore()), {
    name: 'WrongStoreError',
    reason: 'it is not the object store that was used so far, or was emptied',
  });
  const odd = await newStore();
  await odd.put(MARK_KEY, [Buffer.from('hello')]);
  await assert.rejects(claimStore(new Known(), odd), WrongStoreError);
});

test('nothing of a wrong store is read, written, listed or removed; once it is right it is used', async () => {
  const [theirs, mine] = [new Known(), new Known()];
  const store = await newStore();
  await claimStore(theirs, store);
  await store.put('a', [Buffer.from('theirs')]);
  const seen = ownStore(mine, store);
  const list = async () => {
    for await (const { key } of seen.list('')) assert.fail(key);
  };
  const tries = [() => seen.get('a'), () => seen.put('b', []), () => seen.delete('a'), () => seen.size('a')];
  for (const each of [...tries, list, () => seen.check()]) {
    await assert.rejects(each, ObjectStoreUnavailableError);
  }
  assert.equal((await store.get('a')).toString(), 'theirs');
  await store.delete(MARK_KEY);
  assert.equal((await seen.get('a')).toString(), 'theirs');
});
