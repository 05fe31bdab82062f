/** A process that cannot renew its leases stops sending before another process may begin. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { append } from '../../src/control-plane/events/append.ts';
import { DeliveryQueue } from '../../src/control-plane/webhooks/delivery-queue.ts';
import { PARALLEL } from '../../src/control-plane/webhooks/sender.ts';
import { present } from '../../src/shared/assert.ts';
import { createLog } from '../../src/shared/log.ts';
import { apiForFile } from '../support/api.ts';
import { queryOnce } from '../support/database.ts';
import { DatabaseProxy } from '../support/database-proxy.ts';
import { until } from '../support/waiting.ts';
import { makeProvenWebhook, sendWebhooks, startRecorder } from '../support/webhooks.ts';

const EVENTS = 40;
/** To one receiver at a time. */
const IN_FLIGHT = PARALLEL.in_order;

let opened: DatabaseProxy | undefined;
after(() => opened?.close());
const api = await apiForFile({
  database_url: async (database) => {
    opened = await DatabaseProxy.open(database);
    return opened.url;
  },
});
const proxy = present(opened, 'the proxy in front of the database');
const warnings: string[] = [];
const log = createLog('webhooks', 'warn', { write: (line) => void warnings.push(line) });
sendWebhooks(api, { lease_s: 4, log });

test('after a lost lease, requests in flight end and are recorded; the next sender sends the rest', async (t) => {
  const chosen = t.mock.method(DeliveryQueue.prototype, 'next');
  const answered = t.mock.method(DeliveryQueue.prototype, 'answered');
  const owner = await api.person();
  const recorder = await startRecorder();
  const { id } = await makeProvenWebhook(api, owner, recorder.url);
  const release = recorder.hold();
  await transaction(api.db, async (tx) => {
    for (let n = 1; n <= EVENTS; n++) {
      await append(tx, { org_id: owner.org_id, type: 'member.added', data: { n }, actor: 'system' });
    }
  });
  await recorder.has(IN_FLIGHT);

  await proxy.cut();
  await until('sending stops', () =>
    warnings.some((line) => line.includes('leases were not renewed in time')),
  );
  release();
  await until('those in flight are answered', () => answered.mock.callCount() === IN_FLIGHT);
  const sent = chosen.mock.calls.filter((call) => call.result !== undefined);
  assert.equal(sent.length, IN_FLIGHT, 'an answer made room for a request without a lease');

  await proxy.restore();
  const delivered = async () => {
    const text = "select from webhook_deliveries where webhook_id = $1 and state = 'delivered'";
    return (await queryOnce(api.database.url, text, [id])).length;
  };
  await until('all are recorded', async () => (await delivered()) === EVENTS);
  assert.equal(recorder.got.length, EVENTS, 'one was sent twice');
});
