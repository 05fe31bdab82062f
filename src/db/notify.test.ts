import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import { createLog } from '../lib/log.ts';
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
