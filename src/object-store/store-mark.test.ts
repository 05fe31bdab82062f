/** An object store is claimed by one installation, and used by no other. */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { FolderStore } from './folder-store.ts';
import { ObjectStoreUnavailableError } from './object-store.ts';
import { claimStore, type KnownMarks, MARK_KEY, ownStore, readMark, WrongStoreError } from './store-mark.ts';

const root = await mkdtemp(join(tmpdir(), 'berth-claim-'));
after(() => rm(root, { recursive: true, force: true }));
let folders = 0;
const newStore = () => FolderStore.open(join(root, String(folders++)));

class Known implements KnownMarks {
  id: string | undefined;
  marked = false;
  /** Dies just before it records that the mark was written. */
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

test('a store without a mark, with or without objects, is claimed by the first installation only', async () => {
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

test('one of two installations that claim a store at the same moment gets it', async () => {
  const store = await newStore();
  const both = [new Known(), new Known()];
  const claims = await Promise.allSettled(both.map((known) => claimStore(known, store)));
  assert.deepEqual(claims.map(({ status }) => status).sort(), ['fulfilled', 'rejected']);
  const there = await readMark(store);
  assert.deepEqual(
    both.map(({ id, marked }) => marked && id === there).sort(),
    [false, true],
    'only the winner records the claim',
  );
});

test('of two that claim a store without create-only writes at the same moment, the later one gets it', async () => {
  const store = await newStore();
  const [both_looked, both_wrote] = [Promise.withResolvers<void>(), Promise.withResolvers<void>()];
  let looks = 0;
  let writes = 0;
  let before = both_looked.promise;
  const put: FolderStore['put'] = (key, body) => {
    before = before.then(async () => {
      await store.delete(key);
      await store.put(key, body);
      writes += 1;
      if (writes === 2) both_wrote.resolve();
    });
    return before;
  };
  const get: FolderStore['get'] = async (key) => {
    looks += 1;
    if (looks === 2) both_looked.resolve();
    if (looks > 2) await both_wrote.promise;
    return store.get(key);
  };
  const careless = new Proxy(store, {
    get: (of, name) => (name === 'put' ? put : name === 'get' ? get : Reflect.get(of, name)),
  });
  const both = [new Known(), new Known()];
  const claims = await Promise.allSettled(both.map((known) => claimStore(known, careless, 0)));
  assert.deepEqual(claims.map(({ status }) => status).sort(), ['fulfilled', 'rejected']);
  const there = await readMark(store);
  assert.deepEqual(both.map(({ id, marked }) => marked && id === there).sort(), [false, true]);
});

test('a process killed between the mark and its record is followed by one that completes the claim', async () => {
  const store = await newStore();
  const known = new Known();
  known.dies = true;
  await assert.rejects(claimStore(known, store), /killed/);
  known.dies = false;
  await claimStore(known, store);
  assert(known.marked);
});

test('a store that has lost its mark, or has an invalid one, is refused', async () => {
  const known = new Known();
  await claimStore(known, await newStore());
  await assert.rejects(claimStore(known, await newStore()), {
    name: 'WrongStoreError',
    reason: 'it is another object store than before, or it was emptied',
  });
  const odd = await newStore();
  await odd.put(MARK_KEY, [Buffer.from('hello')]);
  await assert.rejects(claimStore(new Known(), odd), WrongStoreError);
});

test('a wrong store is not read, written, listed or changed; once it is the right one it is used', async () => {
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
