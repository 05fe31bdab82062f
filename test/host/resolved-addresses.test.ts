import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ResolvedAddresses } from '../../src/host/egress/resolved-addresses.ts';
import { until } from '../support/waiting.ts';

const HOUR_MS = 3_600_000;

/** A set as the kernel has it, which takes its changes when `go` is called, or at once. */
function kernel({ is_held = false, listed = [] as readonly (readonly [string, string])[] } = {}) {
  const elements = new Map<string, Set<string>>();
  const inputs: string[] = [];
  const refuses = new Set<string>();
  let now_ms = 0;
  let go: () => void = () => undefined;
  const packets = new ResolvedAddresses(
    async ([first], input) => {
      if (first === '-j')
        return JSON.stringify({
          nftables: [
            {
              set: {
                elem: listed.map((concat) => ({
                  elem: { val: { concat }, timeout: 172_800, expires: 172_800 },
                })),
              },
            },
          ],
        });
      if (is_held && input.includes('element')) await new Promise<void>((resolve) => (go = resolve));
      for (const each of refuses) if (input.includes(each)) throw new Error('the set is full');
      if (input.includes('element')) inputs.push(input);
      for (const [, verb, pairs = ''] of input.matchAll(/^(add|delete) element .*\{ (.*) \}$/gm)) {
        for (const pair of pairs.split(', ')) {
          const [guest = '', address = ''] = pair.replace(/ timeout .*/, '').split(' . ');
          const kept = elements.get(guest) ?? new Set();
          elements.set(guest, kept);
          if (verb === 'add') kept.add(address);
          else kept.delete(address);
        }
      }
      return '';
    },
    () => now_ms,
  );
  return {
    packets,
    inputs,
    refuses,
    of: (guest: string) => [...(elements.get(guest) ?? [])],
    pass: (ms: number) => {
      now_ms += ms;
    },
    go: () => go(),
  };
}

const GUEST = '10.87.0.1';
const OTHER = '10.87.0.2';
const many = (count: number) => Array.from({ length: count }, (_, at) => `198.18.${at >> 8}.${at & 255}`);

test('an address is admitted once, until half of its time is over', async () => {
  const { packets, inputs, pass } = kernel();
  await packets.admit(GUEST, ['203.0.113.1']);
  await packets.admit(GUEST, ['203.0.113.1']);
  assert.equal(inputs.length, 1);
  pass(24 * HOUR_MS);
  await packets.admit(GUEST, ['203.0.113.1']);
  assert.equal(inputs.length, 2);
});

test('a VM that looks up without an end has a bounded part of a transaction, and others are in the next', async () => {
  const { packets, inputs, go } = kernel({ is_held: true });
  const all = many(24 * 70);
  const asked = Array.from({ length: 70 }, (_, at) => packets.admit(GUEST, all.slice(24 * at, 24 * at + 24)));
  const outcomes = Promise.allSettled(asked);
  const other = packets.admit(OTHER, ['203.0.113.1']);
  let is_over = false;
  void other.then(() => (is_over = true));
  for (let turn = 0; !is_over; turn++) {
    assert.ok(turn < 1_000, 'the other is not admitted');
    await new Promise((resolve) => setImmediate(resolve));
    go();
  }
  assert.ok(inputs.length <= 2, `${inputs.length} transactions`);
  for (const input of inputs) assert.ok((input.match(/timeout 48h/g)?.length ?? 0) <= 125);
  let is_settled = false;
  void outcomes.then(() => (is_settled = true));
  while (!is_settled) {
    await new Promise((resolve) => setImmediate(resolve));
    go();
  }
  const refused = (await outcomes).filter(({ status }) => status === 'rejected').length;
  assert.ok(refused > 0 && refused < 70, 'what waits is bounded');
});

test('a VM whose change fails does not fail those of others', async () => {
  const { packets, refuses, of } = kernel();
  refuses.add(`${OTHER} . `);
  const failing = packets.admit(OTHER, ['203.0.113.9']);
  const passing = packets.admit(GUEST, ['203.0.113.1']);
  await assert.rejects(failing, /full/);
  await passing;
  assert.deepEqual(of(GUEST), ['203.0.113.1']);
});

test('a VM has at most 1,024; the oldest is dropped for a new one', async () => {
  const { packets, of } = kernel();
  const all = many(1_200);
  for (let at = 0; at < all.length; at += 200) await packets.admit(GUEST, all.slice(at, at + 200));
  assert.deepEqual(of(GUEST).sort(), all.slice(-1_024).sort());
});

test('a VM that left has none, also of an earlier agent, and one that is there keeps its own', async () => {
  const { packets, of, inputs } = kernel({
    listed: [
      [GUEST, '203.0.113.1'],
      [OTHER, '203.0.113.2'],
    ],
  });
  packets.keepOnly(new Set([GUEST]));
  await packets.admit(GUEST, ['203.0.113.1']);
  await packets.admit(GUEST, ['203.0.113.3']);
  assert.ok(
    inputs.some((each) =>
      each.includes(`delete element inet berth_names resolved { ${OTHER} . 203.0.113.2 }`),
    ),
  );
  assert.ok(!inputs.some((each) => each.includes('203.0.113.1')), 'it is known');
  packets.keepOnly(new Set());
  await until('they are deleted', () => of(GUEST).length === 0);
});
