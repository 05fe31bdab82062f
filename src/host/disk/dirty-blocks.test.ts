import assert from 'node:assert/strict';
import { test } from 'node:test';
import { scriptedQmp } from '../../../test/support/scripted-qmp.ts';
import { DIRTY_GRANULARITY, MachineDisk } from './dirty-blocks.ts';

/** As QEMU counts it. */
function diskOf() {
  const counted = { writes: 10, marked_bytes: 0 };
  const qmp = scriptedQmp((command) => {
    if (command === 'query-blockstats')
      return [{ qdev: '/machine/disk0', stats: { wr_operations: counted.writes, unmap_operations: 0 } }];
    return [{ 'node-name': 'overlay', 'dirty-bitmaps': [{ name: 'dirty', count: counted.marked_bytes }] }];
  });
  return { counted, disk: new MachineDisk(qmp) };
}

/** A flush whose guest writes so often while it is frozen, and after. */
async function flushed({ frozen, thawing, later }: { frozen: boolean; thawing: number; later: number }) {
  const { counted, disk } = diskOf();
  disk.noteBegun();
  if (frozen) await disk.noteFrozen();
  counted.writes += thawing;
  counted.marked_bytes = thawing + later > 0 ? DIRTY_GRANULARITY : 0;
  await disk.noteThawed();
  counted.writes += later;
  await disk.noteFlushed();
  return disk.isUntouched();
}

test('one marked block counts as the thaw’s own only if the guest was frozen and has written once until then', async () => {
  const cases = [
    { frozen: true, thawing: 1, later: 0, untouched: true },
    { frozen: true, thawing: 0, later: 0, untouched: true },
    { frozen: true, thawing: 2, later: 0, untouched: false },
    { frozen: true, thawing: 1, later: 1, untouched: false },
    { frozen: false, thawing: 1, later: 0, untouched: false },
    { frozen: false, thawing: 0, later: 0, untouched: false },
  ];
  for (const { untouched, ...how } of cases) assert.equal(await flushed(how), untouched, JSON.stringify(how));
});

test('a flush’s finding is void once the next flush begins', async () => {
  const { disk } = diskOf();
  disk.noteBegun();
  await disk.noteFrozen();
  await disk.noteThawed();
  await disk.noteFlushed();
  assert.equal(await disk.isUntouched(), true);
  disk.noteBegun();
  assert.equal(await disk.isUntouched(), false);
});
