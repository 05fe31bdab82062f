/** Metrics for Prometheus: their own listener, bounded labels, and no content of an instance. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { openPool } from '../../src/control-plane/db/pool.ts';
import { ensureHost } from '../../src/control-plane/fleet/host-store.ts';
import { createMetricsApp, RequestMetrics } from '../../src/control-plane/monitoring/metrics.ts';
import type { VmSample } from '../../src/protocol/host-calls.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { raiseNotificationsOfEvents } from '../support/notifications.ts';
import { instanceIn } from '../support/states.ts';

const metrics = new RequestMetrics();
const api = await apiForFile({ context: { metrics } });
const scraped = createMetricsApp(metrics, api.context);
const origin = await scraped.listen({ host: '127.0.0.1', port: 0 });
after(() => scraped.close());
const owner = await api.person();

const SAMPLE: VmSample = {
  at: '2026-01-01T00:00:00.000Z',
  cpu_seconds: 12.5,
  memory: { host_bytes: 400, used_bytes: null, total_bytes: null },
  disk: { read_bytes: 1, written_bytes: 2, read_operations: 3, write_operations: 4 },
  network: { received_bytes: 5, sent_bytes: 6 },
};

/** The answer, with the host's report of its VMs; without a report the host does not answer. */
async function scrape(vms?: readonly { instance_id: string; sample: VmSample }[]): Promise<string> {
  const asked = fetch(`${origin}/metrics`);
  if (vms) {
    const { id } = await api.agent.nextCall('usage');
    await api.agent.client.answerCall({ id, answer: { result: { vms } } });
  }
  const answer = await asked;
  assert.equal(answer.status, 200);
  assert.match(answer.headers.get('content-type') ?? '', /^text\/plain; version=0\.0\.4/);
  return answer.text();
}

function seriesValue(text: string, series: string): number | undefined {
  const line = text.split('\n').find((each) => each.startsWith(`${series} `));
  return line === undefined ? undefined : Number(line.slice(series.length + 1));
}

test('requests by route and status; unknown paths share one label', async () => {
  await api.as(owner).get('/v1/me');
  await api.as(owner).get('/v1/instances/inst_x');
  await api.as(owner).get(`/nowhere/${'x'.repeat(100)}`);
  const text = await scrape([]);
  const count = (method: string, route: string, status: number) =>
    seriesValue(
      text,
      `berth_http_request_duration_seconds_count{method="${method}",route="${route}",status="${status}"}`,
    );
  assert.equal(count('GET', '/v1/me', 200), 1);
  assert.equal(count('GET', '/v1/instances/:id', 404), 1);
  assert.equal(count('GET', 'none', 404), 1);
  assert.doesNotMatch(text, /nowhere|inst_x/);
});

test('VMs by every state, open flushes, pending deliveries, mails, the pool', async () => {
  await instanceIn(api, owner, 'running');
  await instanceIn(api, owner, 'failed');
  await api.instance(owner);
  const mail = { kind: 'invitation', to: 'ann@example.org', subject: 'One', text: 'A token.' } as const;
  await api.context.mailbox.post(api.db, mail, 60);
  // The failed VM has a notification that waits for a mail.
  await raiseNotificationsOfEvents(api.db);
  const text = await scrape([]);
  assert.equal(seriesValue(text, 'berth_vms{state="running"}'), 1);
  assert.equal(seriesValue(text, 'berth_vms{state="failed"}'), 1);
  assert.equal(seriesValue(text, 'berth_vms{state="stopped"}'), 1);
  assert.equal(seriesValue(text, 'berth_vms{state="suspended"}'), 0);
  assert.equal(seriesValue(text, 'berth_flushes_open'), 0);
  assert.equal(seriesValue(text, 'berth_webhook_deliveries_pending'), 0);
  assert.equal(seriesValue(text, 'berth_mails_waiting'), 2);
  assert.notEqual(seriesValue(text, 'berth_database_connections{state="idle"}'), undefined);
  assert.notEqual(seriesValue(text, 'process_resident_memory_bytes'), undefined);
});

test('figures of each VM; an unknown value and a deleted VM have no series', async () => {
  const { id } = await instanceIn(api, owner, 'running');
  const text = await scrape([{ instance_id: id, sample: SAMPLE }]);
  assert.equal(seriesValue(text, `berth_vm_cpu_seconds_total{instance_id="${id}"}`), 12.5);
  assert.equal(seriesValue(text, `berth_vm_disk_written_bytes_total{instance_id="${id}"}`), 2);
  assert.equal(seriesValue(text, `berth_vm_network_sent_bytes_total{instance_id="${id}"}`), 6);
  assert.equal(seriesValue(text, `berth_vm_guest_memory_used_bytes{instance_id="${id}"}`), undefined);
  assert(!(await scrape([])).includes(`instance_id="${id}"`));
});

test('a host cannot report for a VM of another host', async () => {
  const { id } = await instanceIn(api, owner, 'running');
  await api.db
    .updateTable('vms')
    .set({ host_id: await ensureHost(api.db, 'other', Buffer.alloc(32)) })
    .where('instance_id', '=', id)
    .execute();
  const sample = { ...SAMPLE, cpu_seconds: 99 };
  assert(!(await scrape([{ instance_id: id, sample }])).includes(id));
});

test('a host that does not answer does not affect the rest', async () => {
  const text = await scrape();
  assert.equal(seriesValue(text, 'berth_vms{state="running"}'), 3);
  assert.doesNotMatch(text, /^berth_vm_cpu_seconds_total\{/m);
});

test('parts, hosts, and the age of unsaved data', async () => {
  const { id } = await instanceIn(api, owner, 'running');
  const of = (text: string, name: string) => text.split('\n').filter((line) => line.startsWith(`${name}{`));
  let text = await scrape([]);
  assert.equal(seriesValue(text, 'berth_ready{part="database"}'), 1);
  assert.equal(seriesValue(text, 'berth_ready{part="object_store"}'), 1);
  assert.equal(seriesValue(text, 'berth_ready{part="host"}'), 1);
  assert.equal(seriesValue(text, 'berth_hosts{state="up"}'), 1);
  assert.equal(seriesValue(text, 'berth_hosts{state="lost"}'), 0);
  const [seen] = of(text, 'berth_host_silent_seconds');
  assert.match(seen ?? '', /\{host="[\w-]+"\} \d/);
  assert.match(of(text, 'berth_host_object_store').join(), /^\S+ 1$/);
  assert.match(
    of(text, 'berth_host_memory_bytes').join(),
    /kind="usable"\} \d{9,},.*kind="promised"\} \d{9,}/,
  );
  assert.equal(seriesValue(text, 'berth_unsaved_seconds'), 0);

  const age = sql<Date>`now() - interval '20 minutes'`;
  const instance_id = id as InstanceId;
  const disk = api.db.updateTable('disks').where('instance_id', '=', instance_id);
  await disk.set({ dirty_bytes: 65_536, durable_at: age }).execute();
  await api.db.updateTable('vms').set({ started_at: age }).where('instance_id', '=', instance_id).execute();
  text = await scrape([]);
  assert.equal(Math.round((seriesValue(text, 'berth_unsaved_seconds') ?? 0) / 60), 20);
  const slow = api.db.updateTable('instances').set({ auto_flush_seconds: 3_600 });
  await slow.where('id', '=', instance_id).execute();
  assert.equal(seriesValue(await scrape([]), 'berth_unsaved_seconds'), 0);
});

test('the public listener does not serve it', async () => {
  assert.equal((await api.client.get('/metrics')).status, 404);
});

test('without a database a scrape says so, and the installation has no figures', async () => {
  const registry = new RequestMetrics();
  const db = openPool('postgres://nobody@127.0.0.1:9/none', () => undefined);
  const apart = createMetricsApp(registry, { ...api.context, db });
  try {
    const { statusCode, body } = await apart.inject({ url: '/metrics', headers: { host: 'localhost' } });
    assert.equal(statusCode, 200);
    assert.equal(seriesValue(body, 'berth_ready{part="database"}'), 0);
    assert.doesNotMatch(body, /^berth_(?:vms|hosts|unsaved_seconds|mails_waiting|flushes_open)\b/m);
    assert.notEqual(seriesValue(body, 'berth_database_connections{state="idle"}'), undefined);
  } finally {
    await apart.close();
    await db.destroy();
  }
});
