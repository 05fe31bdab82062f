/** A process that cannot renew its leases stops sending before another process may begin. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { transaction } from '../../src/db/pool.ts';
import { append } from '../../src/events/append.ts';
import { present } from '../../src/lib/assert.ts';
import { createLog } from '../../src/lib/log.ts';
import { PARALLEL } from '../../src/webhooks/sender.ts';
import { apiForFile } from '../support/api.ts';
import { queryOnce } from '../support/database.ts';
import { DatabaseProxy } from '../support/database-proxy.ts';
import { until } from '../support/waiting.ts';
import { happen, makeWebhook, NO_POLL, sendWebhooks, startRecorder } from '../support/webhooks.ts';

const EVENTS = 40;
/** To one receiver at a time. */
const IN_FLIGHT = PARALLEL.fast.in_order;

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
sendWebhooks(api, { ...NO_POLL, lease_s: 4, log });

test('requests in flight end and are recorded; the next sender sends the rest', async () => {
  const owner = await api.person();
  const recorder = await startRecorder();
  const { id } = await makeWebhook(api, owner, recorder.url);
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
  await proxy.restore();
  const delivered = async () => {
    const text = "select from webhook_deliveries where webhook_id = $1 and state = 'delivered'";
    return (await queryOnce(api.database.url, text, [id])).length;
  };
  await until('those in flight are recorded', async () => (await delivered()) === IN_FLIGHT);
  const leases = () => queryOnce(api.database.url, 'select from webhook_leases where webhook_id = $1', [id]);
  await until('the lease is released', async () => (await leases()).length === 0);
  assert.equal(recorder.got.length, IN_FLIGHT);

  await happen(api, owner.org_id, EVENTS + 1);
  await recorder.has(EVENTS + 1);
});
