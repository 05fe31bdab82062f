import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { newId } from '../../shared/ids.ts';
import { MAX_DELAY_MS, MAX_TRIES, outcomeOf, retryDelayMs } from './attempt.ts';
import type { Answer } from './outbound.ts';

/** Published in the interface, before attempts 2 to 10. */
const PUBLISHED_S = [5, 30, 120, 600, 1_800, 7_200, 21_600, 43_200, 86_400];

const chance = fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true });
const tries = fc.integer({ min: 1, max: MAX_TRIES - 1 });

test('ten attempts, the waits between them as published, within 20 %', () => {
  assert.equal(MAX_TRIES, 10);
  fc.assert(
    fc.property(tries, chance, (after, random) => {
      const wait_ms = retryDelayMs(after, null, () => random);
      const published_ms = (PUBLISHED_S[after - 1] ?? 0) * 1000;
      assert.ok(wait_ms !== null && Math.abs(wait_ms - published_ms) <= published_ms * 0.2);
    }),
  );
});

test('the jitter covers its whole range', () => {
  assert.equal(
    retryDelayMs(1, null, () => 0),
    4_000,
  );
  assert.equal(
    retryDelayMs(1, null, () => 1 - Number.EPSILON),
    6_000,
  );
});

test('Retry-After lengthens a wait, up to the maximum, and never shortens it', () => {
  fc.assert(
    fc.property(tries, fc.nat({ max: 10_000_000 }), chance, (after, asked_s, random) => {
      const plain_ms = retryDelayMs(after, null, () => random) ?? 0;
      const wait_ms = retryDelayMs(after, asked_s, () => random) ?? 0;
      assert.equal(wait_ms, Math.min(Math.max(plain_ms, asked_s * 1000), MAX_DELAY_MS));
    }),
  );
});

test('no retry follows the last attempt, whatever the receiver asks for', () => {
  fc.assert(
    fc.property(fc.integer({ min: MAX_TRIES, max: 1_000 }), fc.option(fc.nat()), (after, asked_s) => {
      assert.equal(retryDelayMs(after, asked_s), null);
    }),
  );
});

const AT = new Date('2026-01-15T09:30:00Z');
const delivery = {
  id: newId('whd'),
  attempts: 4,
  tries: 2,
};
const ADDRESS = 'https://receiver.example/hook';
const answer = (change: Partial<Answer>): Answer => ({
  status: null,
  error: null,
  response: '',
  response_headers: {},
  latency_ms: 3,
  retry_after_seconds: null,
  ...change,
});

test('2xx alone is success', () => {
  fc.assert(
    fc.property(fc.integer({ min: 200, max: 599 }), (status) => {
      const { state, error, retry_in_ms } = outcomeOf(delivery, ADDRESS, answer({ status }), AT);
      const expected = status < 300 ? 'delivered' : 'pending';
      assert.equal(state, expected);
      assert.equal(retry_in_ms === null, expected !== 'pending');
      assert.equal(error === null, status < 300);
    }),
  );
});

test('a request without an answer is retried, and its error is kept', () => {
  const outcome = outcomeOf(delivery, ADDRESS, answer({ error: 'connection refused' }), AT);
  assert.equal(outcome.state, 'pending');
  assert.equal(outcome.error, 'connection refused');
});

test('attempts count over the life of a delivery, tries since it was last asked for', () => {
  const { number, tries } = outcomeOf(delivery, ADDRESS, answer({ status: 500 }), AT);
  assert.deepEqual({ number, tries }, { number: 5, tries: 3 });
});

test('the tenth failure is the last', () => {
  const outcome = outcomeOf({ ...delivery, tries: 9 }, ADDRESS, answer({ status: 500 }), AT);
  assert.equal(outcome.state, 'failed');
  assert.equal(outcome.retry_in_ms, null);
});

test('a receiver that asks for an hour gets its retry after an hour', () => {
  const { retry_in_ms } = outcomeOf(
    delivery,
    ADDRESS,
    answer({ status: 503, retry_after_seconds: 3_600 }),
    AT,
  );
  assert.equal(retry_in_ms, 3_600_000);
});
