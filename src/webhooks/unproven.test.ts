import assert from 'node:assert/strict';
import { test } from 'node:test';
import { newId } from '../lib/ids.ts';
import { UNPROVEN_REQUESTS, UNPROVEN_WINDOW_MS, UnprovenRequests } from './unproven.ts';

const taken = (requests: UnprovenRequests, org: Parameters<UnprovenRequests['take']>[0], of: number) => {
  const webhook = newId('wh');
  return Array.from({ length: of }, () => requests.take(org, webhook)).filter(Boolean).length;
};

test('an organisation has 100 requests in ten minutes, and a hundred more in the next', () => {
  let now_ms = 5;
  const requests = new UnprovenRequests(() => now_ms);
  const org = newId('org');
  assert.equal(taken(requests, org, 1_000), UNPROVEN_REQUESTS);
  now_ms += UNPROVEN_WINDOW_MS - 1;
  assert.equal(taken(requests, org, 1_000), 1, 'the one request of a new webhook');
  now_ms += 1;
  assert.equal(taken(requests, org, 1_000), UNPROVEN_REQUESTS);
});

test('all webhooks of the organisation share them, new ones too; beyond these each may send one', () => {
  const requests = new UnprovenRequests(() => 0);
  const org = newId('org');
  assert.equal(taken(requests, org, 60), 60);
  assert.equal(taken(requests, org, 60), 40);
  for (let made = 0; made < 20; made++) assert.equal(taken(requests, org, 100), 1);
});

test('organisations do not share them, however many there are', () => {
  let now_ms = 0;
  const requests = new UnprovenRequests(() => now_ms);
  for (let made = 0; made < 2_500; made++) {
    now_ms += 1_000;
    assert.equal(taken(requests, newId('org'), 101), UNPROVEN_REQUESTS);
  }
});
