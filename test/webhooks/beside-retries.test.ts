/**
 * First attempts go out beside requests that hang and beside many retries. A request may take ten minutes here: a sender
 * that waited for one would exceed the test's patience.
 */
import { randomBytes } from 'node:crypto';
import { after, test } from 'node:test';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { append } from '../../src/control-plane/events/append.ts';
import { Outbound } from '../../src/control-plane/webhooks/outbound.ts';
import type { WebhookId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { Sealer } from '../../src/shared/seal.ts';
import { apiForFile } from '../support/api.ts';
import { queryOnce } from '../support/database.ts';
import { until } from '../support/waiting.ts';
import { happen, makeProvenWebhook, sendWebhooks, startRecorder, untilRetried } from '../support/webhooks.ts';

const outbound = new Outbound({
  allow_cidrs: [{ address: '127.0.0.1', prefix: 32 }],
  timeout_ms: 600_000,
});
const secrets = new Sealer(randomBytes(32), 'berth webhooks v1');
const api = await apiForFile({ context: { webhooks: { outbound, secrets } } });
after(() => outbound.close());
const lines: string[] = [];
sendWebhooks(api, { log: createLog('webhooks', 'debug', { write: (line) => void lines.push(line) }) });

async function countOf(text: string, id: string): Promise<number> {
  const [row] = await queryOnce<{ n: number }>(api.database.url, `select count(*)::int as n from ${text}`, [
    id,
  ]);
  return row?.n ?? 0;
}
const untilSlow = (id: string) =>
  until('its receiver counts as slow', () =>
    lines.some((line) => line.includes(id) && line.includes('the receiver is slow')),
  );
const delivered = (id: string) =>
  countOf("webhook_deliveries where webhook_id = $1 and state = 'delivered'", id);

for (const [what, nth_held] of [
  ['first attempt', 1],
  ['retry', 2],
] as const) {
  test(`a ${what} that hangs delays neither another instance nor events without one`, async () => {
    const owner = await api.person();
    const recorder = await startRecorder();
    const webhook = await makeProvenWebhook(api, owner, recorder.url, { events: ['vm.started'] });
    const [stuck, free] = [await api.instance(owner), await api.instance(owner)];
    const { promise: released, resolve: release } = Promise.withResolvers<void>();
    recorder.reply = async (_, nth) => {
      if (nth === nth_held) await released;
      return { status: nth < nth_held ? 500 : 204 };
    };
    const started = (n: number, instance = {}) =>
      happen(api, owner.org_id, n, { type: 'vm.started', ...instance });
    await started(1, { instance_id: stuck.id });
    await recorder.has(1);
    if (nth_held > 1) await untilRetried(api, webhook, recorder, 1, nth_held);
    await untilSlow(webhook.id);

    await started(2, { instance_id: free.id });
    await started(3);
    await recorder.has(nth_held + 2);
    await until('they are delivered', async () => (await delivered(webhook.id)) === 2);
    release();
    await until('all are delivered', async () => (await delivered(webhook.id)) === 3);
  });
}

test('first attempts are sent beside hundreds of retries, which are all sent too', async () => {
  const retries = 300;
  const owner = await api.person();
  const recorder = await startRecorder();
  const { id } = await makeProvenWebhook(api, owner, recorder.url);
  recorder.reply = () => ({ status: 503, headers: { 'retry-after': '3600' } });
  await transaction(api.db, async (tx) => {
    for (let n = 1; n <= retries; n++)
      await append(tx, { org_id: owner.org_id, type: 'member.added', data: { n }, actor: 'system' });
  });
  const failed = () =>
    countOf("webhook_deliveries where webhook_id = $1 and state = 'pending' and attempts = 1", id);
  await until('all have failed once', async () => (await failed()) === retries);

  const release = recorder.hold(({ event }) => Number(event.data['n']) <= retries);
  await api.db
    .updateTable('webhook_deliveries')
    .set({ next_attempt_at: new Date(Date.now() - 3_600_000) })
    .where('webhook_id', '=', id as WebhookId)
    .where('state', '=', 'pending')
    .execute();
  await until('the first retries are in flight', () => recorder.got.length > retries);
  await untilSlow(id);
  await happen(api, owner.org_id, retries + 1);
  await until('it is sent', () => recorder.got.some(({ event }) => event.data['n'] === retries + 1));
  release();
  await until('all are delivered', async () => (await delivered(id)) === retries + 1);
});
