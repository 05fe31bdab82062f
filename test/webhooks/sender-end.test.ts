/** A webhook that is woken while its sender ends: nothing waits for a poll. And when a retry is sent. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import pg from 'pg';
import { Sender } from '../../src/control-plane/webhooks/sender.ts';
import { apiForFile } from '../support/api.ts';
import { queryOnce } from '../support/database.ts';
import { until } from '../support/waiting.ts';
import { happen, makeWebhook, NO_POLL, sendWebhooks, startRecorder } from '../support/webhooks.ts';

const api = await apiForFile();
const { url } = api.database;
sendWebhooks(api, NO_POLL);

const counted = async (text: string, values: unknown[]) => {
  const [row] = await queryOnce<{ count: number }>(url, `select count(*)::int as count from ${text}`, values);
  return row?.count ?? 0;
};
const PENDING = "webhook_deliveries where webhook_id = $1 and state = 'pending'";

test('an event during the release of the lease is sent by the same sender', async () => {
  const owner = await api.person();
  const recorder = await startRecorder();
  const { id } = await makeWebhook(api, owner, recorder.url);
  const release = recorder.hold();
  await happen(api, owner.org_id, 1);
  await recorder.has(1);

  // The release waits for this lock.
  const holder = new pg.Client({ connectionString: url });
  await holder.connect();
  try {
    await holder.query('begin');
    const locked = await holder.query('select owner from webhook_leases where webhook_id = $1 for update', [
      id,
    ]);
    assert.equal(locked.rowCount, 1);
    release();
    const releasing =
      "pg_stat_activity where wait_event_type = 'Lock' and query like '%delete from \"webhook_leases\"%' and $1 <> ''";
    await until('the lease is being released', async () => (await counted(releasing, [id])) === 1);

    await happen(api, owner.org_id, 2);
    await until('its delivery is pending', async () => (await counted(PENDING, [id])) === 1);
    assert.equal(recorder.got.length, 1);
    await holder.query('rollback');
  } finally {
    await holder.end();
  }
  const [, second] = await recorder.has(2);
  assert.deepEqual(second?.event.data['n'], 2);
});

test('a webhook that is enabled again while a request from before its disabling is in flight gets new events', async (t) => {
  const ended = t.mock.method(Sender.prototype, 'end');
  const owner = await api.person();
  const recorder = await startRecorder();
  const { id } = await makeWebhook(api, owner, recorder.url, { events: ['member.added'] });
  const path = `/v1/webhooks/${id}`;
  const release = recorder.hold((_, nth) => nth === 1);
  await happen(api, owner.org_id, 1);
  await recorder.has(1);
  await api.as(owner).patch(path, { status: 'disabled' });
  await until('its sender knows', () => ended.mock.calls.some((call) => call.arguments[0] === 'disabled'));
  await api.as(owner).patch(path, { status: 'enabled' });
  await happen(api, owner.org_id, 2);
  await until('its delivery is pending', async () => (await counted(PENDING, [id])) === 1);
  assert.equal(recorder.got.length, 1);
  release();
  const [, second] = await recorder.has(2);
  assert.equal(second?.event.data['n'], 2);
});

test('a retry is due by the clock of the database, not by that of the process', async (t) => {
  const { now } = Date;
  t.mock.method(Date, 'now', () => now() - 60_000);
  const owner = await api.person();
  const recorder = await startRecorder();
  recorder.reply = () => ({ status: 503, headers: { 'retry-after': '30' } });
  const { id } = await makeWebhook(api, owner, recorder.url);
  await happen(api, owner.org_id, 1);
  const later = `${PENDING} and attempts = 1 and next_attempt_at > now() + interval '20 seconds'`;
  await until('it waits for its retry', async () => (await counted(later, [id])) === 1);
});
