/** Placements at once on several hosts, labels and taints, and the counters that a choice goes by. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setHost } from '../../src/cli/server/hosts.ts';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { recountUse } from '../../src/control-plane/fleet/host-store.ts';
import { recountHosts } from '../../src/control-plane/fleet/lease-monitor.ts';
import type { HostId } from '../../src/shared/ids.ts';
import { apiForFile, type InstanceOut } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { listenToRemoteHosts } from '../support/remote-hosts.ts';
import { FACTS } from '../support/scripted-agent.ts';
import { stateOf } from '../support/states.ts';

const api = await apiForFile();
const { db } = api;
const owner = await api.person();
const client = api.as(owner);
const far = await listenToRemoteHosts(api);

const NAMES = ['one', 'two', 'three'];
const GIB = 1024;
const agents = new Map<HostId, (typeof api)['agent']>();
for (const name of NAMES) {
  const { agent } = await far.join(name, { cpus: '4', memory: '4' });
  await agent.connect({ ...FACTS, memory_mib: 64 * GIB });
  agents.set(await idOf(name), agent);
}
await api.agent.silence();
await db.updateTable('hosts').set({ last_seen_at: null }).where('name', '=', 'local').execute();

async function idOf(name: string): Promise<HostId> {
  return (await db.selectFrom('hosts').select('id').where('name', '=', name).executeTakeFirstOrThrow()).id;
}
const start = ({ id }: InstanceOut) => client.post(`/v1/instances/${id}/vm`);
const stop = async ({ id }: InstanceOut) => {
  const { host_id } = await stateOf(api, owner, id);
  const agent = agents.get(host_id as HostId) ?? assert.fail('its agent');
  assert.equal((await client.delete(`/v1/instances/${id}/vm`)).status, 202);
  await agent.assigned(id, 'it is to stop', ({ desired }) => desired === 'stopped');
  await agent.stopped(id);
};

/** The counters of all hosts, and that they are right. */
async function use() {
  for (const id of agents.keys())
    assert.equal(await transaction(db, (tx) => recountUse(tx, id)), false, 'the counters are right');
  const rows = await db.selectFrom('host_use').selectAll().execute();
  return NAMES.map(async (name) => {
    const id = await idOf(name);
    return rows.find(({ host_id }) => host_id === id) ?? { vms: 0, memory_mib: 0 };
  });
}
const usedOf = async () => (await Promise.all(await use())).map(({ vms, memory_mib }) => [vms, memory_mib]);

describe('thirty placements of 1 GiB at once, on three hosts of 4 GiB', () => {
  let instances: InstanceOut[];

  test('give each host what it has, and no more', async () => {
    instances = await Promise.all(Array.from({ length: 30 }, () => api.instance(owner, { memory_mib: GIB })));
    const statuses = (await Promise.all(instances.map(start))).map(({ status }) => status);
    assert.deepEqual(
      [202, 503].map((wanted) => statuses.filter((status) => status === wanted).length),
      [12, 18],
    );
    assert.deepEqual(await usedOf(), [
      [4, 4 * GIB],
      [4, 4 * GIB],
      [4, 4 * GIB],
    ]);
  });

  test('what stops makes room, once, and what starts again at once takes it once', async () => {
    const placed: InstanceOut[] = [];
    for (const each of instances)
      if ((await stateOf(api, owner, each.id)).state === 'starting') placed.push(each);
    await Promise.all(placed.map(stop));
    assert.deepEqual(
      (await usedOf()).map(([vms]) => vms),
      [0, 0, 0],
    );
    // Each twice, as callers that repeat do.
    await Promise.all([...placed, ...placed].map(start));
    assert.deepEqual(
      (await usedOf()).map(([vms]) => vms),
      [4, 4, 4],
    );
    await Promise.all(placed.map(stop));
  });
});

test('an organisation is spread over the hosts', async () => {
  const placed = await Promise.all(NAMES.map(() => api.instance(owner, { memory_mib: 512 })));
  for (const each of placed) assert.equal((await start(each)).status, 202);
  assert.deepEqual(
    (await usedOf()).map(([vms]) => vms),
    [1, 1, 1],
  );
  await Promise.all(placed.map(stop));
});

test('wrong counters are found and corrected', async () => {
  await db
    .updateTable('host_use')
    .set({ memory_mib: 4 * GIB, vms: 4 })
    .execute();
  const instance = await api.instance(owner, { memory_mib: GIB });
  assertError(await start(instance), 'UNAVAILABLE', /1024 MiB of memory left/);
  await recountHosts(db, api.context.log);
  assert.equal((await start(instance)).status, 202);
  await stop(instance);
});

describe('labels and taints', () => {
  test('an instance runs only on a host with its labels, and a tainted host takes only what tolerates it', async () => {
    assert.match(
      await setHost(far.server, 'two', { labels: 'zone=b,disk=nvme', taints: 'gpu' }),
      /^Changed two\./,
    );
    const placement = { host_labels: { zone: 'b' }, tolerations: [] as string[] };
    const instance = await api.instance(owner, { placement });
    assert.deepEqual((instance as { placement?: unknown }).placement, placement);
    assertError(await start(instance), 'UNAVAILABLE', /has a taint that the instance does not tolerate/);
    const path = `/v1/instances/${instance.id}`;
    assert.equal((await client.patch(path, { placement: { tolerations: ['gpu'] } })).status, 200);
    assert.equal((await start(instance)).status, 202);
    assert.equal((await stateOf(api, owner, instance.id)).host_id, await idOf('two'));
    await stop(instance);
    await client.patch(path, { placement: { host_labels: { zone: 'nowhere' } } });
    const refused = await start(instance);
    assertError(refused, 'UNAVAILABLE', /No connected host has the labels zone=nowhere/);
    assert.equal(refused.headers['retry-after'], '60', 'clients do not repeat what cannot change');
  });

  test('what tolerates nothing never gets the tainted host', async () => {
    const placed = await Promise.all(
      Array.from({ length: 9 }, () => api.instance(owner, { memory_mib: GIB })),
    );
    const statuses = (await Promise.all(placed.map(start))).map(({ status }) => status);
    assert.equal(statuses.filter((status) => status === 202).length, 8);
    assert.deepEqual(
      (await usedOf()).map(([vms]) => vms),
      [4, 0, 4],
    );
  });

  test('they are bounded, and refused where they are malformed', async () => {
    for (const labels of ['zone', '=b', 'a b=c'])
      await assert.rejects(setHost(far.server, 'two', { labels }), /--labels takes KEY=VALUE,…/);
    await assert.rejects(setHost(far.server, 'two', { taints: '-x' }), /--taints takes KEY or KEY=VALUE,…/);
    assert.match(await setHost(far.server, 'two', { labels: '', taints: '' }), /^Changed two\./);
    const { labels, taints } = await db
      .selectFrom('hosts')
      .select(['labels', 'taints'])
      .where('name', '=', 'two')
      .executeTakeFirstOrThrow();
    assert.deepEqual([labels, taints], [{}, []]);
    for (const placement of [{ host_labels: { 'a b': 'c' } }, { tolerations: ['a b'] }, { other: 1 }])
      assertError(await client.post('/v1/instances', { name: 'x', placement }), 'INVALID_REQUEST');
  });
});
