import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { newId } from '../../shared/ids.ts';
import type { Answer } from './outbound/outbound.ts';
import { outcomeOf } from './record-outcomes.ts';

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
