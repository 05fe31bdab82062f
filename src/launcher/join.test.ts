import assert from 'node:assert/strict';
import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { createLog } from '../shared/log.ts';
import { keepControlPlanes, readControlPlanes } from './join.ts';

const folder = await mkdtemp(join(tmpdir(), 'berth-places-'));
after(() => rm(folder, { recursive: true }));
const log = createLog('test', 'silent');
const file = { control_planes: join(folder, 'control-planes.json') };
const [old, renewed] = ['AB', 'CD'].map((byte) => Array(32).fill(byte).join(':')) as [string, string];
const places = [{ url: 'https://10.0.0.1:7500', fingerprint: renewed }];

async function untilKept(given: string) {
  for (;;) {
    const known = await readControlPlanes(file, given);
    if (known.length > 0) return known;
  }
}

test('the list is read again for the token with which it was learned, and for no other', async () => {
  keepControlPlanes(file, old, log)(places);
  assert.deepEqual(await untilKept(old), places);
  assert.deepEqual(await readControlPlanes(file, renewed), []);
});

test('a file that is missing, damaged, or of another form is as none', async () => {
  for (const text of [
    '',
    '{"given":"x"',
    JSON.stringify(places),
    JSON.stringify({ given: old, known: [1] }),
  ]) {
    await writeFile(file.control_planes, text);
    assert.deepEqual(await readControlPlanes(file, old), []);
  }
  await rm(file.control_planes);
  assert.deepEqual(await readControlPlanes(file, old), []);
});
