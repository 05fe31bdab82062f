import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { mkdtemp, readFile, rm, stat, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, type TestContext, test } from 'node:test';
import fc from 'fast-check';
import { writePastCache } from './direct-file.ts';

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
