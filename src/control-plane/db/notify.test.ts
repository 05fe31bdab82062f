import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { createLog } from '../../shared/log.ts';
import { NotifyHub } from './notify.ts';

test('a hub has stopped only when no wait looks any more, also one whose caller has disconnected', async () => {
  const hub = new NotifyHub('postgresql://localhost/none', createLog('test', 'silent'));
  const answer = Promise.withResolvers<undefined>();
  const wait = hub.waitFor('host', 'one', 60_000, () => answer.promise, AbortSignal.abort());
  let has_stopped = false;
  const stopped = hub.stop().then(() => {
    has_stopped = true;
  });
  await turn();
  assert.equal(has_stopped, false);
  answer.resolve(undefined);
  assert.equal(await wait, undefined);
  await stopped;
});

test('all that wait for the same share one read, which begins after the last of them has asked', async () => {
  const hub = new NotifyHub('postgresql://localhost/none', createLog('test', 'silent'));
  let state = 'starting';
  let reads = 0;
  const look = async () => {
    const seen = await hub.shared('vm', async () => {
      reads += 1;
      return state;
    });
    return seen === 'running' ? seen : undefined;
  };
  const waits = Array.from({ length: 100 }, () =>
    hub.waitFor('instance', 'one', 60_000, look, new AbortController().signal),
  );
  state = 'running';
  assert.deepEqual(new Set(await Promise.all(waits)), new Set(['running']));
  assert.equal(reads, 1);
  state = 'stopped';
  assert.equal(await look(), undefined, 'a later read is another one');
  await hub.stop();
});
