/** The lists in SECURITY.md that a test can complete: requests with many items, and what bounds the rows of each table. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { BATCHES } from '../../src/protocol/batches.ts';

const PROJECT = join(import.meta.dirname, '..', '..');
const read = (...path: string[]) => readFileSync(join(PROJECT, ...path), 'utf8');

/** What the first or the second cell of a section's rows names. */
function namesIn(section: string, column: 0 | 1): string[] {
  const text = read('SECURITY.md').split(`\n## ${section}\n`)[1]?.split('\n## ')[0] ?? '';
  const cells = text
    .split('\n')
    .filter((line) => line.startsWith('| '))
    .slice(1)
    .map((line) => line.slice(2, -2).split(' | ')[column] ?? '');
  return cells.flatMap((cell) => [...cell.matchAll(/`([A-Za-z0-9_]+)`/g)].map(([, name = '']) => name));
}

test('every request with many items is listed', () => {
  assert.deepEqual(namesIn('Reports of many', 0).sort(), Object.keys(BATCHES).sort());
});

test('for every table there is a bound on the rows that one caller adds', () => {
  const tables = [
    ...read('src', 'control-plane', 'db', 'schema.sql').matchAll(/^create (?:unlogged )?table (\w+)/gm),
  ];
  const listed = new Set(namesIn('Rows that one caller adds', 1));
  assert.deepEqual([...listed].sort(), tables.map(([, name = '']) => name).sort());
});
