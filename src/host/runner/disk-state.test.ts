import assert from 'node:assert/strict';
import { test } from 'node:test';
import { judgeSidecar } from './disk-state.ts';

const head = { generation: 7, head_epoch: 3 };
const sidecar = { generation: 7, epoch: 3, placement: 4, clean: false, filled: true };

test('a clean overlay is worth what it says while the head is the one it names, whoever had the disk since', () => {
  assert.equal(judgeSidecar({ ...sidecar, clean: true }, head, 9), 'clean');
  assert.equal(judgeSidecar({ ...sidecar, clean: true, generation: 6 }, head, 1), 'none');
  assert.equal(judgeSidecar({ ...sidecar, clean: true, epoch: 2 }, head, 1), 'none');
});

test('an overlay with unsaved writes is kept however many failed starts came after it', () => {
  assert.equal(judgeSidecar(sidecar, head, 1), 'unsaved');
  assert.equal(judgeSidecar(sidecar, head, 4), 'unsaved');
});

test('an overlay with unsaved writes is void once another host had the disk', () => {
  assert.equal(judgeSidecar(sidecar, head, 5), 'none');
});

test('an overlay whose sidecar missed the commits of its own machine is kept', () => {
  assert.equal(judgeSidecar(sidecar, { generation: 9, head_epoch: 4 }, 1), 'unsaved');
  assert.equal(judgeSidecar(sidecar, { generation: 9, head_epoch: 5 }, 1), 'none');
});
