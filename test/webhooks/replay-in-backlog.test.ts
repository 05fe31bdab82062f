/** A backlog is read from where the last look ended: what a replay puts before that place is sent all the same. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { transaction } from '../../src/db/pool.ts';
import { append } from '../../src/events/append.ts';
import { apiForFile } from '../support/api.ts';
import { queryOnce } from '../support/database.ts';
import { until } from '../support/waiting.ts';
import { makeWebhook, sendWebhooks, startRecorder } from '../support/webhooks.ts';

/** More than a drain holds at a time, twice. */
const EVENTS = 1_200;
/** Sent before the replay, and by then not held any more. */
const FIRST = 100;

const api = await apiForFile();
// Without the task that finds what was forgotten.
sendWebhooks(api);

test('a replay in the middle of a backlog sends again what had been sent, and all of the rest', async () => {
  const owner = await api.person();
  const recorder = await startRecorder();
  const { id } = await makeWebhook(api, owner, recorder.url);
  const since = new Date(Date.now() - 60_000).toISOString();
  let replayed = 0;
  recorder.reply = async (_, nth) => {
    if (nth === EVENTS / 2)
      replayed = (await api.as(owner).post(`/v1/webhooks/${id}/replay`, { since })).status;
    return { status: 204 };
  };
  await transaction(api.db, async (tx) => {
    for (let n = 1; n <= EVENTS; n++) {
      await append(tx, { org_id: owner.org_id, type: 'member.added', data: { n }, actor: 'system' });
    }
  });
  const left = () =>
    queryOnce(
      api.database.url,
      "select from webhook_deliveries where webhook_id = $1 and state <> 'delivered' limit 1",
      [id],
    );
  await until('all are sent, the first of them twice', async () => {
    return replayed > 0 && recorder.got.length >= EVENTS + FIRST && (await left()).length === 0;
  });
  assert.equal(replayed, 202);
  const times = Map.groupBy(recorder.got, (got) => got.event.data['n'] as number);
  assert.equal(times.size, EVENTS);
  for (let n = 1; n <= FIRST; n++) assert.equal(times.get(n)?.length, 2, `event ${n}`);
});
