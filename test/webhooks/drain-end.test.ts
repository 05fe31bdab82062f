/** A webhook that is woken between its drain's last look and its end: nothing waits for a sweep. And when it is looked at next. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import pg from 'pg';
import { Drain } from '../../src/webhooks/drain.ts';
import { apiForFile } from '../support/api.ts';
import { queryOnce } from '../support/database.ts';
import { until } from '../support/waiting.ts';
import { happen, makeWebhook, sendWebhooks, startRecorder } from '../support/webhooks.ts';

const api = await apiForFile();
const { url } = api.database;
// Without the task that finds what was forgotten.
sendWebhooks(api);

const counted = async (text: string, values: unknown[]) => {
  const [row] = await queryOnce<{ count: number }>(url, `select count(*)::int as count from ${text}`, values);
  return row?.count ?? 0;
};

const jobs = 'graphile_worker._private_jobs where key = $1';

test('what happens while the lease is being given back is sent by the same drain', async () => {
  const owner = await api.person();
  const recorder = await startRecorder();
  const { id } = await makeWebhook(api, owner, recorder.url);
  const release = recorder.hold();
  await happen(api, owner.org_id, 1);
  await recorder.has(1);

  // Whoever gives the lease back from here on waits for us.
  const holder = new pg.Client({ connectionString: url });
  await holder.connect();
  try {
    await holder.query('begin');
    const held = await holder.query('select owner from webhook_drains where webhook_id = $1 for update', [
      id,
    ]);
    assert.equal(held.rowCount, 1);
    release();
    const giving =
      "pg_stat_activity where wait_event_type = 'Lock' and query like '%delete from webhook_drains%' and $1 <> ''";
    await until('the lease is being given back', async () => (await counted(giving, [id])) === 1);

    await happen(api, owner.org_id, 2);
    const waiting = 'webhook_batches where webhook_id = $1';
    await until('there is a delivery of it', async () => (await counted(waiting, [id])) === 1);
    await until('its job is over', async () => (await counted(jobs, [id])) === 0);
    assert.equal(recorder.got.length, 1);
    await holder.query('rollback');
  } finally {
    await holder.end();
  }
  const [, second] = await recorder.has(2);
  assert.deepEqual(second?.event.data['n'], 2);
});

test('one that is enabled again while a request of before its disabling is under way gets what is new', async (t) => {
  const ended = t.mock.method(Drain.prototype, 'end');
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
  const waiting = 'webhook_batches where webhook_id = $1';
  await until('there is a delivery of it', async () => (await counted(waiting, [id])) === 1);
  await until('its job is over', async () => (await counted(jobs, [id])) === 0);
  assert.equal(recorder.got.length, 1);
  release();
  const [, second] = await recorder.has(2);
  assert.equal(second?.event.data['n'], 2);
});

test('a retry is looked at when it is due by the clock of the database, and not before', async (t) => {
  const { now } = Date;
  t.mock.method(Date, 'now', () => now() - 60_000);
  const owner = await api.person();
  const recorder = await startRecorder();
  recorder.reply = () => ({ status: 503, headers: { 'retry-after': '30' } });
  const { id } = await makeWebhook(api, owner, recorder.url);
  await happen(api, owner.org_id, 1);
  const due = `${jobs} and run_at >= (select next_attempt_at from webhook_deliveries where webhook_id = $1)`;
  await until('its job waits for that', async () => (await counted(due, [id])) === 1);
});
