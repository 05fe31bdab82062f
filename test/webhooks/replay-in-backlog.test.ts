/** A sender reads a backlog from its last position on. A replay that makes earlier deliveries pending is sent too. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { append } from '../../src/control-plane/events/append.ts';
import { apiForFile } from '../support/api.ts';
import { queryOnce } from '../support/database.ts';
import { until } from '../support/waiting.ts';
import { makeWebhook, NO_POLL, sendWebhooks, startRecorder } from '../support/webhooks.ts';

/** More than twice what a sender claims at a time. */
const EVENTS = 1_200;
/** Sent and recorded before the replay. */
const FIRST = 100;

const api = await apiForFile();
sendWebhooks(api, NO_POLL);

test('a replay during a backlog sends the sent deliveries again, and all of the rest', async () => {
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
