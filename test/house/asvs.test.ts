/** docs/asvs.md: every requirement once, each with what shows it. documents.test.ts checks that the named tests exist. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';

const PROJECT = join(import.meta.dirname, '..', '..');
const text = readFileSync(join(PROJECT, 'docs', 'asvs.md'), 'utf8');
const rows = text
  .split('\n')
  .filter((line) => line.startsWith('| v5.0.0-'))
  .map((line) => line.slice(1, -1).split(' | '));

test('every row has a requirement, an answer and a proof', () => {
  assert.ok(rows.length > 100);
  for (const row of rows) {
    assert.equal(row.length, 4, row[0]);
    assert.match(
      row[3]?.trim() ?? '',
      /^(`(test|src)\/.+\.test\.ts`: “.+”|(deviation|not applicable|document|no test): .+)$/,
      row[0],
    );
  }
});

test('every id is well-formed and unique, and the count at the top is right', () => {
  const ids = rows.flatMap(([cell = '']) => cell.trim().split(', '));
  for (const id of ids) assert.match(id, /^v5\.0\.0-\d+\.\d+\.\d+$/);
  assert.deepEqual(ids, [...new Set(ids)]);
  assert.equal(/^(\d+) requirements:/m.exec(text)?.[1], String(ids.length));
});
