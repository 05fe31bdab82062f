import assert from 'node:assert/strict';
import { test } from 'node:test';
import { BACKUP_VERSION, keyCheck, parseManifest } from './manifest.ts';

const refused = (value: unknown) => {
  try {
    parseManifest(typeof value === 'string' ? value : JSON.stringify(value), 'm.json');
  } catch (error) {
    return `${(error as { reason?: string }).reason}: ${(error as Error).message}`;
  }
  return 'read';
};

test('a manifest of another format or an unknown version is refused', () => {
  assert.equal(refused({ kind: 'berth backup', version: BACKUP_VERSION }), 'read');
  assert.equal(refused('{"kind": "berth ba'), 'damaged: m.json is damaged');
  for (const other of [null, 'text', [], { kind: 'another' }]) {
    assert.equal(refused(JSON.stringify(other)), 'usage: m.json is not the manifest of a backup');
  }
  assert.match(
    refused({ kind: 'berth backup', version: 99 }),
    /^usage: .* version 99, and this program reads/,
  );
});

test('the check of a key matches only that key, and does not reveal it', () => {
  const [key, other] = [Buffer.alloc(32, 1), Buffer.alloc(32, 2)];
  assert.equal(keyCheck(key), keyCheck(Buffer.from(key)));
  assert.notEqual(keyCheck(key), keyCheck(other));
  assert.match(keyCheck(key), /^[0-9a-f]{32}$/);
  assert(!keyCheck(key).includes(key.toString('hex').slice(0, 8)));
});
