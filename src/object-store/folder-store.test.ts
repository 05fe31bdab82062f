/** What a folder does beyond the contract of all object stores (test/object-store/object-store-contract.test.ts). */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import {
  type FileHandle,
  mkdir,
  mkdtemp,
  open,
  readdir,
  readFile,
  rename,
  rm,
  stat,
  utimes,
  writeFile,
} from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, afterEach, beforeEach, type TestContext, test } from 'node:test';
import fc from 'fast-check';
import { createLog } from '../shared/log.ts';
import { FolderStore, writePastCache } from './folder-store.ts';
import { ObjectExistsError, ObjectNotFoundError, ObjectStoreUnavailableError } from './object-store.ts';

let root: string;
let store: FolderStore;

beforeEach(async () => {
  root = await mkdtemp(join(tmpdir(), 'berth-store-'));
  store = await FolderStore.open(join(root, 'a', 'store'));
});
afterEach(() => rm(root, { recursive: true, force: true }));

const temporaryFiles = (): Promise<string[]> => readdir(join(root, 'a', 'store', '.tmp'));

test('no write leaves a temporary file, whether it won or lost', async () => {
  const puts = Array.from({ length: 8 }, () => store.put('k/one', [randomBytes(1_000)]));
  await Promise.allSettled(puts);
  assert.deepEqual(await temporaryFiles(), []);
});

test('an object cannot be a parent of another object', async () => {
  await store.put('k', [Buffer.from('12345')]);
  await assert.rejects(store.get('k/below'), ObjectNotFoundError);
  await assert.rejects(store.put('k/below', []), ObjectExistsError);
});

test('an aborted write leaves nothing behind', async () => {
  const stop = new AbortController();
  const put = store.put('k', [randomBytes(1_000_000), randomBytes(1_000_000)], stop.signal);
  stop.abort();
  await assert.rejects(put, { name: 'AbortError' });
  await assert.rejects(store.get('k'), ObjectNotFoundError);
  assert.deepEqual(await temporaryFiles(), []);
});

test('a large cold object equals any other, is created once, and leaves nothing when aborted', async () => {
  const body = [randomBytes(1_500_000), randomBytes(1_500_000)];
  await store.put('k/cold', body, undefined, 'cold');
  assert.ok((await store.get('k/cold')).equals(Buffer.concat(body)));
  assert.ok(
    (await store.get('k/cold', { offset: 1_499_999, length: 2 })).equals(
      Buffer.concat(body).subarray(1_499_999, 1_500_001),
    ),
  );
  await assert.rejects(store.put('k/cold', [randomBytes(2_000_000)], undefined, 'cold'), ObjectExistsError);
  const stop = new AbortController();
  const put = store.put('k/other', body, stop.signal, 'cold');
  stop.abort();
  await assert.rejects(put, { name: 'AbortError' });
  assert.deepEqual(await temporaryFiles(), []);
});

test('when direct writes fail halfway, the object is still complete, and the log says it once', async (t: TestContext) => {
  const lines: string[] = [];
  const log = createLog('test', 'info', { write: (line) => void lines.push(line) });
  const cached = await FolderStore.open(join(root, 'cached'), { log });
  const file = await open(join(root, 'any'), 'w');
  await file.close();
  const handles = Object.getPrototypeOf(file) as FileHandle;
  const { write } = handles;
  // Only direct writes pass a position.
  t.mock.method(handles, 'write', function (this: FileHandle, ...args: unknown[]) {
    if (args[3] === undefined || args[3] === 0) return Reflect.apply(write, this, args);
    throw Object.assign(new Error('invalid argument'), { code: 'EINVAL' });
  });
  const bodies = [0, 1, 2].map(() => [randomBytes(1_500_000), randomBytes(700_001)]);
  const put = (at: number) => cached.put(`k/${at}`, bodies[at] ?? [], undefined, 'cold');
  await Promise.all([put(0), put(1)]);
  await put(2);
  for (const [at, body] of bodies.entries())
    assert.ok((await cached.get(`k/${at}`)).equals(Buffer.concat(body)));
  assert.equal(lines.length, 1);
  assert.match(lines[0] ?? '', /past the system's cache/);
});

test('open deletes temporary files of a crash once they are an hour old', async () => {
  const folder = join(root, 'a', 'store', '.tmp');
  await writeFile(join(folder, 'old'), 'x');
  await writeFile(join(folder, 'young'), 'x');
  const long_ago = Date.now() / 1000 - 3_700;
  await utimes(join(folder, 'old'), long_ago, long_ago);
  await FolderStore.open(join(root, 'a', 'store'));
  assert.deepEqual(await temporaryFiles(), ['young']);
});

test('a folder that cannot be written is "unavailable", and the message names it', async () => {
  // In sysfs not even root can create files.
  await assert.rejects(
    FolderStore.open('/sys/berth-test'),
    (error) =>
      error instanceof ObjectStoreUnavailableError && /^folder \/sys\/berth-test: .+/.test(error.message),
  );
});

test('a missing folder makes the store unavailable, and no object missing', async () => {
  await store.put('k/one', [Buffer.from('x')]);
  await rm(join(root, 'a'), { recursive: true });
  const calls = [
    () => store.put('k/two', [Buffer.from('x')]),
    () => store.get('k/one'),
    () => store.size('k/one'),
    // The store without objects.
    async () => {
      for await (const _ of store.list('k/'));
    },
  ];
  for (const gone of ['nothing', 'a file']) {
    if (gone === 'a file') await mkdir(join(root, 'a')).then(() => writeFile(join(root, 'a', 'store'), ''));
    for (const call of calls) {
      await assert.rejects(
        call(),
        (error) => error instanceof ObjectStoreUnavailableError && error.reason === 'its folder is gone',
        gone,
      );
    }
  }
});

test('files that a start without the disk left on the mount point are not used as the store', async () => {
  const [mounted, away] = [join(root, 'a', 'store'), join(root, 'a', 'away')];
  await store.put('k/one', [Buffer.from('x')]);
  await rename(mounted, away);
  // Also when the mount point has a mark and copied objects.
  const left = await FolderStore.open(mounted);
  await left.put('k/one', [Buffer.from('x')]);
  const calls = [
    () => store.put('k/two', [Buffer.from('x')]),
    () => store.get('k/other'),
    () => store.size('k/other'),
    () => store.delete('k/one'),
    () => store.delete('k/other'),
    async () => {
      for await (const _ of store.list('k/'));
    },
  ];
  for (const call of calls) {
    await assert.rejects(
      call(),
      (error) => error instanceof ObjectStoreUnavailableError && /another folder/.test(error.reason),
    );
  }
  await assert.rejects(stat(join(mounted, 'k', 'two')), { code: 'ENOENT' });
  assert.equal((await left.get('k/one')).toString(), 'x', 'and nothing of another store is removed');
  assert.deepEqual(await temporaryFiles(), []);
  await rm(mounted, { recursive: true });
  await rename(away, mounted);
  await store.put('k/two', [Buffer.from('y')]);
  assert.equal((await store.get('k/one')).toString(), 'x', 'and where it is back, it is used again');
});

test('folders and files are readable by their owner only', async () => {
  await store.put('p/q', [Buffer.from('x')]);
  for (const [path, mode] of [
    ['p', 0o700],
    ['p/q', 0o600],
    ['.tmp', 0o700],
  ] as const) {
    assert.equal((await stat(join(root, 'a', 'store', path))).mode & 0o777, mode, path);
  }
});

const folder = await mkdtemp(join(tmpdir(), 'berth-direct-'));
const path = join(folder, 'file');
after(() => rm(folder, { recursive: true, force: true }));

const MIB = 1024 * 1024;
const NOISE = randomBytes(3 * MIB);

/** Views with arbitrary bounds, like frames. */
const parts = fc.array(
  fc.record({ at: fc.nat(MIB), length: fc.oneof(fc.nat(5_000), fc.nat(2 * MIB), fc.constant(MIB)) }),
  { maxLength: 6 },
);

const where_taken = { skip: !(await writePastCache(path, [NOISE])) && 'this file system takes no O_DIRECT' };

test('parts of any sizes read back unchanged, from a file of their total size', where_taken, async () => {
  await fc.assert(
    fc.asyncProperty(parts, async (chosen) => {
      const body = chosen.map(({ at, length }) => NOISE.subarray(at, at + length));
      await writeFile(path, NOISE.subarray(0, 9_000));
      assert.equal(await writePastCache(path, body), true);
      const expected = Buffer.concat(body);
      assert.equal((await stat(path)).size, expected.length);
      assert.ok((await readFile(path)).equals(expected));
    }),
    { numRuns: 40 },
  );
});

test('concurrent writes do not mix', where_taken, async () => {
  const bodies = Array.from({ length: 9 }, () => randomBytes(2 * MIB + 77));
  await Promise.all(bodies.map((body, i) => writePastCache(`${path}-${i}`, [body])));
  for (const [i, body] of bodies.entries()) assert.ok((await readFile(`${path}-${i}`)).equals(body));
});

test('buffers beyond the kept ones are released at once', where_taken, async (t: TestContext) => {
  const { mock } = t.mock.method(ArrayBuffer.prototype, 'transfer');
  await Promise.all(Array.from({ length: 9 }, (_, i) => writePastCache(`${path}-${i}`, [NOISE])));
  assert.equal(mock.callCount(), 5);
});

test('an aborted write rejects with the reason of its signal', where_taken, async () => {
  const stop = new AbortController();
  const writing = writePastCache(path, [NOISE], stop.signal);
  stop.abort();
  await assert.rejects(writing, { name: 'AbortError' });
});

test('other errors are thrown', async () => {
  await assert.rejects(writePastCache(join(folder, 'none', 'file'), [NOISE]), { code: 'ENOENT' });
});

test('a file system without direct writes is reported', async () => {
  assert.equal(await writePastCache('/dev/null', [NOISE]), false);
});
