import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { AIMS } from './aims.ts';
import { measured } from './figure.ts';
import { type BenchTable, withTable } from './results.ts';

const readme = readFileSync(join(import.meta.dirname, 'README.md'), 'utf8');
const names = ['start', 'flush', 'requests'];

function tableOf(name: string, figure: string, values: readonly number[]): BenchTable {
  const rows = [
    measured({
      ...{ bench: name, figure, unit: 's', values },
      ...{ beside: 'bare QEMU', beside_values: [2, 4, 3], remark: '' },
    }),
  ];
  return { name, about: `about ${name} ${values[0]}`, rows };
}

test('a run replaces the table of its benchmark, leaves the others, and keeps their order', () => {
  const empty = 'before\n<!-- results: written by npm run bench -->\nold\n<!-- end of results -->\nafter\n';
  const first = withTable(empty, tableOf('requests', 'other', [1]), names);
  const second = withTable(first, tableOf('start', 'ssh_banner', [3, 1, 2]), names);
  const third = withTable(second, tableOf('start', 'ssh_banner', [6, 6, 6]), names);
  assert.match(
    third,
    /^before\n.*### start\n\nabout start 6\n.*### requests\n\nabout requests 1\n.*\nafter\n$/s,
  );
  assert.equal(third.match(/^### /gm)?.length, 2);
  assert.match(
    second,
    /^\| `start\/ssh_banner` \| 2 s \(1–3\) \| bare QEMU: 3 \(2–4\) \| 0\.67 \| ratio at most 1\.05: reached \|$/m,
  );
  assert.match(third, /\| 2\.00 \| ratio at most 1\.05: \*\*missed\*\* \|$/m);
});

test('a README without the two comment lines is refused', () => {
  assert.throws(() => withTable('nothing', tableOf('start', 'ssh_banner', [1]), names), /has no lines/);
});

test('every figure with an aim is explained in bench/README.md', () => {
  for (const figure of Object.keys(AIMS)) assert.ok(readme.includes(`\`${figure}\``), figure);
});
