/** What is fresh gets rows, as by a replay, while its sender reads: of that, too, the first attempts keep their order. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { addJobs } from '../../src/db/jobs.ts';
import { transaction } from '../../src/db/pool.ts';
import { append } from '../../src/events/append.ts';
import { numberEvents } from '../../src/events/store.ts';
import { present } from '../../src/lib/assert.ts';
import type { WebhookId } from '../../src/lib/ids.ts';
import { dispatchEvents } from '../../src/tasks/dispatch-events.ts';
import { Drain } from '../../src/webhooks/drain.ts';
import { fanOutToWebhooks } from '../../src/webhooks/fan-out.ts';
import { writeFresh } from '../../src/webhooks/fresh-store.ts';
import { FAST, sendJob } from '../../src/webhooks/lanes.ts';
import { UnprovenRequests } from '../../src/webhooks/unproven.ts';
import { apiForFile } from '../support/api.ts';
import { queryOnce } from '../support/database.ts';
import { until } from '../support/waiting.ts';
import { happen, makeWebhook, sendWebhooks, startRecorder } from '../support/webhooks.ts';

const api = await apiForFile();
const { db } = api;

test('what got rows between the looks of its sender is not overtaken by what came after it', async () => {
  const owner = await api.person();
  const recorder = await startRecorder();
  const { id: instance_id } = await api.instance(owner);
  await dispatchEvents(db, []);
  const id = (await makeWebhook(api, owner, recorder.url, { events: ['vm.started'] })).id as WebhookId;
  await happen(api, owner.org_id, 1, { type: 'vm.started', instance_id });
  await dispatchEvents(db, [fanOutToWebhooks]);
  const { stop } = sendWebhooks(api);
  await transaction(db, async (tx) => {
    await sql`lock table webhook_batches in access exclusive mode`.execute(tx);
    await addJobs(db, [sendJob(id, false)]);
    const waits = "select from pg_locks where relation = 'webhook_batches'::regclass and not granted";
    await until('its sender looks', async () => (await queryOnce(api.database.url, waits, [])).length > 0);
    await writeFresh(tx, id);
    await append(tx, {
      org_id: owner.org_id,
      type: 'vm.started',
      instance_id,
      data: { n: 2 },
      actor: 'system',
    });
    await fanOutToWebhooks(tx, present(await numberEvents(tx, 100), 'the head'));
  });
  await until('both came', () => recorder.got.length >= 2);
  await stop();
  assert.deepEqual(
    recorder.got.map(({ event }) => event.data['n']),
    [1, 2],
  );
});

test('what got rows between the looks of its sender is sent once', async () => {
  const owner = await api.person();
  const recorder = await startRecorder();
  const id = (await makeWebhook(api, owner, recorder.url)).id as WebhookId;
  await happen(api, owner.org_id, 1);
  await dispatchEvents(db, [fanOutToWebhooks]);
  let looks = 0;
  const watched = db.withPlugin({
    transformQuery: ({ node }) => node,
    transformResult: async ({ result }) => {
      const is_fresh = result.rows.some((row) => 'examined_to' in row);
      if (is_fresh && ++looks === 1) await transaction(db, (tx) => writeFresh(tx, id));
      return result;
    },
  });
  const { outbound, secrets } = api.context.webhooks;
  const give_up = new AbortController().signal;
  const unproven = new UnprovenRequests();
  await new Drain(id, FAST, { db: watched, outbound, secrets, give_up, window: () => 64, unproven }).pump();
  assert.ok(looks > 0);
  assert.equal(recorder.got.length, 1);
});
