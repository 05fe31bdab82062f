import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { VmId } from '../../shared/ids.ts';
import { type FoundOverlay, isLost, judgeOverlay, type RanSince } from './judge-overlay.ts';
import type { OverlaySidecar } from './overlay-files.ts';

/** A row for every way in which file, sidecar, head and database can disagree; `any`: it makes no difference. */
interface Row {
  readonly why: string;
  readonly file: FoundOverlay['file'] | 'any';
  readonly sidecar: 'none' | 'damaged' | 'clean' | 'written' | 'any';
  /** The head is the one that the sidecar names. */
  readonly same?: boolean | 'any';
  /** No guest may have run since without it. */
  readonly own?: boolean | 'any';
  readonly continues?: boolean | 'any';
  readonly known?: boolean | 'any';
  readonly decision: 'clean' | 'unsaved' | 'remove' | 'set aside';
}

const ROWS: readonly Row[] = [
  { why: 'no overlay', file: 'none', sidecar: 'any', decision: 'remove' },
  { why: 'an overlay that nothing vouches for', file: 'any', sidecar: 'none', decision: 'remove' },
  { why: 'its disk is unknown', file: 'any', sidecar: 'damaged', decision: 'set aside' },
  { why: 'the head itself', file: 'whole', sidecar: 'clean', same: true, decision: 'clean' },
  {
    why: 'the head, torn: all is durable',
    file: 'damaged',
    sidecar: 'clean',
    same: true,
    decision: 'remove',
  },
  {
    why: 'the head and more',
    ...{ file: 'whole', sidecar: 'written', same: true, own: true, known: true, decision: 'unsaved' },
  },
  {
    why: 'the head and more, by a VM that the database has lost',
    ...{ file: 'whole', sidecar: 'written', same: true, own: true, known: false, decision: 'set aside' },
  },
  {
    why: 'the head and more, torn',
    file: 'damaged',
    sidecar: 'written',
    same: true,
    own: true,
    decision: 'set aside',
  },
  {
    why: 'a guest has run without it: the only copy of what its own guest has synced',
    ...{ file: 'any', sidecar: 'written', same: true, own: false, decision: 'set aside' },
  },
  {
    why: 'behind or ahead of the head of its own VM: it holds both',
    ...{ file: 'whole', sidecar: 'any', same: false, own: true, continues: true, decision: 'unsaved' },
  },
  {
    why: 'the same, torn',
    ...{ file: 'damaged', sidecar: 'any', same: false, own: true, continues: true, decision: 'set aside' },
  },
  {
    why: 'its VM has the head, but a guest has run since without it',
    ...{
      file: 'any',
      sidecar: 'any',
      same: false,
      own: false,
      continues: true,
      known: true,
      decision: 'set aside',
    },
  },
  {
    why: 'the same, and the database has lost its disk',
    ...{
      file: 'any',
      sidecar: 'any',
      same: false,
      own: false,
      continues: true,
      known: false,
      decision: 'set aside',
    },
  },
  {
    why: 'overtaken by another VM',
    ...{ file: 'any', sidecar: 'any', same: false, continues: false, known: true, decision: 'remove' },
  },
  {
    why: 'ahead of what the database knows',
    ...{ file: 'any', sidecar: 'any', same: false, continues: false, known: false, decision: 'set aside' },
  },
];

const HEAD = { commit_id: 'head' };
const BOOLEANS = [true, false] as const;

function* situations() {
  for (const file of ['none', 'damaged', 'whole'] as const)
    for (const sidecar of ['none', 'damaged', 'clean', 'written'] as const)
      for (const same of BOOLEANS)
        for (const own of BOOLEANS)
          for (const continues of BOOLEANS)
            for (const known of BOOLEANS) yield { file, sidecar, same, own, continues, known };
}

function matches(
  row: Row,
  now: ReturnType<typeof situations> extends Generator<infer S> ? S : never,
): boolean {
  const fits = (wanted: unknown, is: unknown) => wanted === undefined || wanted === 'any' || wanted === is;
  // Earlier rows have said all that there is without a file or a sidecar.
  if (row.sidecar === 'any' && row.file !== 'none' && ['none', 'damaged'].includes(now.sidecar)) return false;
  if (row.file === 'any' && now.file === 'none') return false;
  return (['file', 'sidecar', 'same', 'own', 'continues', 'known'] as const).every((name) =>
    fits(row[name], now[name]),
  );
}

test('every disagreement of overlay, sidecar, head and database has one decision', () => {
  const used = new Set<Row>();
  for (const now of situations()) {
    const rows = ROWS.filter((row) => matches(row, now));
    assert.equal(rows.length, 1, `${JSON.stringify(now)}: ${rows.map(({ why }) => why).join('; ')}`);
    const [row] = rows as [Row];
    used.add(row);
    const sidecar: OverlaySidecar = {
      ...{ generation: 7, commit_id: now.same ? 'head' : 'another', vm_id: 'vm_x' as VmId, placement: 4 },
      ...{ clean: now.sidecar === 'clean', sync_failed: false, filled: 'yes', image_version: null },
    };
    const found: FoundOverlay = {
      file: now.file,
      sidecar: now.sidecar === 'none' || now.sidecar === 'damaged' ? now.sidecar : sidecar,
    };
    const { known, continues } = now;
    const since = now.own ? { own_since: 4, last_ran_epoch: 3 } : { own_since: 1, last_ran_epoch: 5 };
    const { use, otherwise } = judgeOverlay(found, HEAD, since, { known, continues });
    assert.equal(use === 'none' ? otherwise : use, row.decision, `${row.why}: ${JSON.stringify(now)}`);
  }
  assert.equal(used.size, ROWS.length, 'every row is met');
});

test('a loss is reported: writes that a boot may have made, and writes that only a copy set aside holds', () => {
  const nothing = { all_durable: false, may_have_written: false };
  const wrote = { all_durable: false, may_have_written: true };
  const durable = { all_durable: true, may_have_written: true };
  const cases = [
    ['perhaps', nothing, false],
    ['perhaps', wrote, true],
    ['perhaps', durable, false],
    ['some', nothing, true],
    ['some', durable, false],
    ['none', wrote, false],
  ] as const;
  for (const [loss, writes, lost] of cases)
    assert.equal(isLost({ loss }, writes), lost, `${loss}, ${JSON.stringify(writes)}`);
});

test('an overlay of before the last guest ran, here or elsewhere, does not count as its last writes', () => {
  const sidecar = { generation: 7, commit_id: 'head', vm_id: 'vm_x' as VmId, placement: 4 };
  const rest = { sync_failed: false, filled: 'yes', image_version: null } as const;
  const known = { known: true, continues: true };
  const lossOf = (clean: boolean, since: RanSince) =>
    judgeOverlay({ file: 'whole', sidecar: { ...sidecar, ...rest, clean } }, HEAD, since, known);
  const none_since = { own_since: 1, last_ran_epoch: 4 };
  for (const since of [
    { own_since: 5, last_ran_epoch: 4 },
    { own_since: 1, last_ran_epoch: 5 },
  ]) {
    assert.deepEqual(lossOf(true, since), { use: 'clean', otherwise: 'remove', loss: 'perhaps' });
    assert.deepEqual(lossOf(false, since), { use: 'none', otherwise: 'set aside', loss: 'perhaps' });
  }
  for (const clean of [true, false]) assert.equal(lossOf(clean, none_since).loss, 'none');
});
