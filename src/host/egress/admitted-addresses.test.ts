import assert from 'node:assert/strict';
import { test } from 'node:test';
import { AdmittedAddresses } from './admitted-addresses.ts';

function recorded() {
  const changes: { admitted: readonly string[]; dropped: readonly string[] }[] = [];
  const addresses = new AdmittedAddresses(async (admitted, dropped) => {
    changes.push({ admitted, dropped });
  });
  return { addresses, changes };
}

test('an address is admitted once, until half of its time is over', async () => {
  const { addresses, changes } = recorded();
  await addresses.add(['203.0.113.1', '203.0.113.2', '2001:db8::1']);
  await addresses.add(['203.0.113.2', '203.0.113.3']);
  assert.deepEqual(changes, [
    { admitted: ['203.0.113.1', '203.0.113.2'], dropped: [] },
    { admitted: ['203.0.113.3'], dropped: [] },
  ]);
});

test('one that could not be admitted is tried again', async () => {
  let fails = true;
  const addresses = new AdmittedAddresses(async () => {
    if (fails) throw new Error('no table');
  });
  await assert.rejects(addresses.add(['203.0.113.1']));
  fails = false;
  await addresses.add(['203.0.113.1']);
});

test('a VM has at most 4,096; the oldest is dropped for a new one', async () => {
  const { addresses, changes } = recorded();
  const all = Array.from({ length: 4_200 }, (_, at) => `10.0.${at >> 8}.${at & 255}`);
  for (let at = 0; at < all.length; at += 24) await addresses.add(all.slice(at, at + 24));
  const kept = new Set<string>();
  for (const { admitted, dropped } of changes) {
    for (const each of dropped) assert.ok(kept.delete(each));
    for (const each of admitted) kept.add(each);
  }
  assert.deepEqual([...kept], all.slice(-4_096));
});
