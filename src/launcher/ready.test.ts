import assert from 'node:assert/strict';
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { typedAs } from './ready.ts';

test('the command is named as it can be typed: in a checkout, installed by npm, on the PATH', (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'berth-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const bin = join(folder, 'node_modules', '.bin');
  const program = join(folder, 'node_modules', 'berth', 'dist', 'src', 'launcher', 'ready.js');
  assert.equal(typedAs(import.meta.filename, '/usr/bin', folder), 'bin/berth');
  assert.equal(typedAs(program, '/nowhere', folder), 'berth');
  mkdirSync(bin, { recursive: true });
  writeFileSync(join(bin, 'berth'), '');
  assert.equal(typedAs(program, '/nowhere', folder), 'node_modules/.bin/berth');
  assert.equal(typedAs(program, `/nowhere:${bin}`, folder), 'berth');
  assert.equal(typedAs('/usr/lib/berth/dist/src/launcher/ready.js', bin, '/'), 'berth');
});
