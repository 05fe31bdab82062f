import assert from 'node:assert/strict';
import { test } from 'node:test';
import { KINDS, nameOf, type Round, schedule } from './schedule.ts';

function first(count: number, seed: number, clocks = true): Round[] {
  const rounds = schedule(seed, clocks);
  return Array.from({ length: count }, () => rounds.next().value);
}

test('a seed gives the same rounds again, and another seed others', () => {
  assert.deepEqual(first(50, 7), first(50, 7));
  assert.notDeepEqual(first(50, 7), first(50, 8));
});

test('each kind of fault comes up within some rounds, clocks only where they can jump', () => {
  const kinds = (clocks: boolean) =>
    new Set(first(200, 1, clocks).flatMap(({ faults }) => faults.map(({ of, how }) => `${of} ${how}`)));
  assert.equal(kinds(true).size, KINDS.length);
  assert.ok(![...kinds(false)].some((name) => name.endsWith('clock')));
});

test('a lost host or a restored database is the only fault of its round, and some rounds have two faults', () => {
  const rounds = first(200, 3);
  assert.ok(
    rounds.every(
      ({ faults }) => faults.length === 1 || faults.every(({ loses, how }) => !loses && how !== 'restore'),
    ),
  );
  assert.ok(rounds.some(({ faults }) => faults.length === 2));
});

test('a fault is named for a reader', () => {
  const fault = { of: 'rack', number: 2, how: 'cut', loses: true, ms: 1_500, jump_s: 0 } as const;
  assert.equal(nameOf(fault), 'rack-2 cut (1.5 s)');
  assert.equal(nameOf({ ...fault, of: 'leader', number: 1, how: 'kill' }), 'leader kill (1.5 s)');
});
