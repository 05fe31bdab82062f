/**
 * Answers that no server should give, through ingress, egress proxy and E2B adapter. `answer-rounds.ts` beside this file runs more of them.
 */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { reportThrows } from '../../src/shared/contain.ts';
import {
  adapterRelay,
  gateByHttp1,
  gateByHttp2,
  ingressRelays,
  runAnswers,
} from '../support/answer-rounds.ts';
import { tries } from '../support/thorough.ts';

const thrown: unknown[] = [];
reportThrows((error) => thrown.push(error));

describe('hostile answers', { timeout: 600_000 }, () => {
  const ends: (() => unknown)[] = [];
  const clean = { after: (then: () => unknown) => void ends.push(then) };
  after(async () => {
    for (const end of ends.reverse()) await end();
  });
  const seed = Math.floor(Math.random() * 2 ** 20);
  const relays = [
    ...[0, 1].map((at) => async () => (await ingressRelays(clean))[at] ?? assert.fail('no such relay')),
    ...[() => gateByHttp1(clean), () => gateByHttp2(clean), () => adapterRelay(clean)],
  ];
  for (const [at, make] of relays.entries()) {
    const name = ['ingress, HTTP/1.1', 'ingress, HTTP/2', 'proxy, HTTP/1.1', 'proxy, HTTP/2', 'adapter'][at];
    test(`${name}: a client reads each answer or sees a cut, and no other connection notices`, async () => {
      const relay = await make();
      await runAnswers(relay, { answers: tries(500, 4_000), seed, clients: 4 });
      assert.deepEqual(thrown, [], 'a value of the answer reached a call that throws');
    });
  }
});
