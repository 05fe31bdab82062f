import assert from 'node:assert/strict';
import { test } from 'node:test';
import {
  formatList,
  type Listing,
  sizeCell,
  sparkLine,
  timeCell,
  USUAL_LAYOUT,
  when,
  wrapped,
} from './table.ts';

interface Disk {
  readonly name: string;
  readonly bytes: number;
  readonly made: string | null;
}

const LISTING: Listing<Disk> = {
  headings: ['NAME', 'DISK SIZE', 'MADE'],
  row: ({ name, bytes, made }) => [name, sizeCell(bytes), timeCell(made)],
  more: { headings: ['ID'], row: ({ name }) => [name === 'b' ? '-' : `id_${name}`] },
  quiet: ({ name }) => name,
  empty: 'No disks.',
};
const DISKS: readonly Disk[] = [
  { name: 'a "b", c', bytes: 2_048, made: '2026-11-25T09:12:00.000Z' },
  { name: 'b', bytes: 7, made: null },
];

test('a table has its usual columns, or the chosen ones in their order', () => {
  assert.match(formatList(DISKS, LISTING, USUAL_LAYOUT), /^NAME +DISK SIZE +MADE\na "b", c +2 KiB +2026-/);
  const layout = { columns: ['id', 'disk-size'], format: 'table' } as const;
  assert.equal(
    formatList(DISKS, LISTING, layout),
    'ID           DISK SIZE\nid_a "b", c  2 KiB\n-            7 B\n',
  );
  assert.equal(formatList([], LISTING, layout), 'No disks.\n');
});

test('CSV and JSON carry numbers, times in RFC 3339 and null, not their texts for people', () => {
  const csv = formatList(DISKS, LISTING, { columns: null, format: 'csv' });
  assert.equal(
    csv,
    'name,disk-size,made,id\n"a ""b"", c",2048,2026-11-25T09:12:00.000Z,"id_a ""b"", c"\nb,7,,\n',
  );
  const json = formatList(DISKS, LISTING, { columns: ['NAME', 'made', 'id'], format: 'json' });
  assert.deepEqual(JSON.parse(json), [
    { name: 'a "b", c', made: '2026-11-25T09:12:00.000Z', id: 'id_a "b", c' },
    { name: 'b', made: null, id: null },
  ]);
  const told = formatList(DISKS.slice(1), LISTING, { columns: ['Disksize', 'disk_size'], format: 'csv' });
  assert.equal(told, 'disk-size,disk-size\n7,7\n');
  assert.equal(formatList([], LISTING, { columns: null, format: 'csv' }), 'name,disk-size,made,id\n');
  assert.equal(formatList([], LISTING, { columns: null, format: 'json' }), '[]\n');
});

test('text that a spreadsheet would take for a formula is defused in CSV, and numbers stay numbers', () => {
  const listing: Listing<string | number> = {
    headings: ['CELL'],
    row: (value) => [typeof value === 'string' ? value : { text: `${value} B`, value }],
    quiet: String,
    empty: '',
  };
  const layout = { columns: null, format: 'csv' } as const;
  const cells = ['=1+2', '+3', '-x', '@a', '\t=1', '\r=1', '=a,b', '-', 'a=b', -5];
  assert.equal(
    formatList(cells, listing, layout),
    `cell\n'=1+2\n'+3\n'-x\n'@a\n'\t=1\n"'\r=1"\n"'=a,b"\n\na=b\n-5\n`,
  );
  assert.match(formatList(['=1+2'], listing, { ...layout, format: 'json' }), /"=1\+2"/);
});

test('a column for people is in tables only, unless it is named', () => {
  const listing = { ...LISTING, headings: ['NAME', { for_people: 'DISK SIZE' }, 'MADE'] };
  assert.match(formatList(DISKS, listing, USUAL_LAYOUT), /^NAME +DISK SIZE +MADE\n/);
  assert.match(formatList(DISKS, listing, { columns: null, format: 'csv' }), /^name,made,id\n/);
  assert.match(formatList(DISKS, listing, { columns: ['disk-size'], format: 'csv' }), /^disk-size\n2048\n/);
});

test('an unknown column is refused with the nearest one and all of them', () => {
  assert.throws(
    () => formatList(DISKS, LISTING, { columns: ['naem'], format: 'csv' }),
    /^UsageError: --columns: there is no column naem\. Did you mean name\? There are name, disk-size, made, id$/,
  );
});

test('a text is wrapped between words, and a longer word gets its own line', () => {
  assert.deepEqual(wrapped('if that was not you', 11), ['if that was', 'not you']);
  assert.deepEqual(wrapped('is SHA256:abcdefghijkl allowed', 10), ['is', 'SHA256:abcdefghijkl', 'allowed']);
  assert.deepEqual(wrapped('a b', Number.POSITIVE_INFINITY), ['a b']);
});

test('a time is shown with its distance from now, before or after', () => {
  const at = '2026-11-25T09:12:30.000Z';
  const shown = (now: string) => when(at, Date.parse(now));
  const local = new Date(at);
  const hour = String(local.getHours()).padStart(2, '0');
  assert.match(shown('2026-11-25T09:15:30Z'), new RegExp(`^2026-11-2\\d ${hour}:\\d2 \\(3 min ago\\)$`));
  assert.match(shown('2026-11-23T09:12:30Z'), /\(in 2 d\)$/);
  assert.match(shown('2026-11-25T09:12:20Z'), /\(just now\)$/);
  assert.deepEqual(timeCell(null, 'not yet'), { text: 'not yet', value: null });
  assert.equal((timeCell(at) as { value: string }).value, at);
});

const LINE = { from_ms: 0, to_ms: 80, cells: 8 };

test('a bar stands for the mean of its part of the time, and a space for a part without a value', () => {
  const values = [
    { at_ms: 0, value: 0 },
    { at_ms: 21, value: 25 },
    { at_ms: 29, value: 75 },
    { at_ms: 79, value: 100 },
  ];
  assert.equal(sparkLine(values, LINE), '▁ ▅    █');
});

test('values of zero are lines on the ground, and what lies outside the time is left out', () => {
  assert.equal(sparkLine([{ at_ms: 5, value: 0 }], LINE), '▁       ');
  assert.equal(
    sparkLine(
      [
        { at_ms: 80, value: 9 },
        { at_ms: -1, value: 9 },
      ],
      LINE,
    ),
    '        ',
  );
});
