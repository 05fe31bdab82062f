import assert from 'node:assert/strict';
import { test } from 'node:test';
import { AgentConduct } from './guest-agent.ts';

test('an agent that breaks the protocol again and again is cut off for longer each time, to a minute', () => {
  const conduct = new AgentConduct();
  const cut_off: number[] = [];
  let now = 1_000_000;
  for (let time = 0; time < 9; time++) {
    conduct.brokeProtocol(now);
    cut_off.push(conduct.cutOffMs(now));
    now += conduct.cutOffMs(now);
    assert.equal(conduct.cutOffMs(now), 0);
    // An answer between changes nothing.
    conduct.answered();
    now += 1_000;
  }
  assert.deepEqual(
    cut_off,
    [1, 2, 4, 8, 16, 32, 60, 60, 60].map((seconds) => seconds * 1_000),
  );
  conduct.brokeProtocol(now + 600_000);
  assert.equal(conduct.cutOffMs(now + 600_000), 1_000);
});

test('an agent that broke the protocol is silent until it answers', () => {
  const conduct = new AgentConduct();
  assert.equal(conduct.is_silent, false);
  conduct.brokeProtocol(0);
  assert.equal(conduct.is_silent, true);
  conduct.didNotAnswer(5_000, 6_000);
  assert.equal(conduct.is_silent, true);
  conduct.answered();
  assert.equal(conduct.is_silent, false);
});

test('an agent is silent once it has not answered for 20 s, not before', () => {
  const conduct = new AgentConduct();
  conduct.didNotAnswer(0, 1_000);
  conduct.didNotAnswer(18_000, 19_999);
  assert.equal(conduct.is_silent, false);
  conduct.didNotAnswer(19_000, 20_000);
  assert.equal(conduct.is_silent, true);
  const slow = new AgentConduct();
  slow.didNotAnswer(0, 1_000);
  slow.answered();
  slow.didNotAnswer(60_000, 61_000);
  assert.equal(slow.is_silent, false);
});

test('a guest that was reset is called at once', () => {
  const conduct = new AgentConduct();
  conduct.brokeProtocol(0);
  conduct.forgive();
  assert.deepEqual([conduct.is_silent, conduct.cutOffMs(1)], [false, 0]);
});
