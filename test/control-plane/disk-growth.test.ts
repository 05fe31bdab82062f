/** A disk that grows while its VM runs: what the caller is told, and what the host is asked for and believed. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { setQuota } from '../../src/control-plane/organisations/quotas.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { apiForFile, type InstanceOut } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { instanceIn } from '../support/states.ts';

const api = await apiForFile();
const owner = await api.person();
const { agent } = api;
const GIB = 2 ** 30;

const change = (id: string, body: object) => api.as(owner).patch<InstanceOut>(`/v1/instances/${id}`, body);
const show = async (id: string) => (await api.as(owner).get<InstanceOut>(`/v1/instances/${id}`)).body;
const askedToGrow = (id: InstanceId, gib: number) =>
  agent.assigned(
    id,
    `its disk grows to ${gib} GiB`,
    ({ disk_grows, spec }) => disk_grows && spec.disk_bytes === gib * GIB,
  );
const grown = (id: InstanceId, gib: number) =>
  agent.observe(id, { kind: 'disk_grown', disk_bytes: gib * GIB });

describe('PATCH of disk_gib while the VM runs', () => {
  test('answers "done" once the host has reported that the file system has grown', async () => {
    const { id, disk } = await instanceIn(api, owner, 'running');
    assert.equal(disk.growth, undefined);
    const answering = change(id, { disk_gib: 20, labels: { a: 'b' } });
    await askedToGrow(id, 20);
    assert.equal((await show(id)).disk.growth, 'next_boot');
    assert.deepEqual(await grown(id, 20), { outcome: 'accepted' });
    const { status, body } = await answering;
    assert.equal(status, 200);
    assert.deepEqual([body.disk_gib, body.labels], [20, { a: 'b' }]);
    assert.deepEqual(
      [body.disk.growth, body.disk.size_bytes, body.vm.disk.growth],
      ['done', 20 * GIB, 'done'],
    );
    await agent.assigned(id, 'nothing is to grow', ({ disk_grows }) => !disk_grows);
  });

  test('answers "next_boot" when the VM ends first', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const answering = change(id, { disk_gib: 20 });
    await askedToGrow(id, 20);
    await agent.observe(id, { kind: 'powered_off' });
    const { status, body } = await answering;
    assert.deepEqual([status, body.disk.growth, body.vm.state], [200, 'next_boot', 'stopping']);
  });

  test('a report of a size that was increased again does not count', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const first = change(id, { disk_gib: 20 });
    await askedToGrow(id, 20);
    const second = change(id, { disk_gib: 21 });
    await askedToGrow(id, 21);
    await grown(id, 20);
    assert.equal((await show(id)).disk.growth, 'next_boot');
    await grown(id, 21);
    for (const { body } of await Promise.all([first, second])) assert.equal(body.disk.growth, 'done');
  });

  test('the report of an earlier placement is fenced', async () => {
    const { id } = await instanceIn(api, owner, 'stopped');
    await change(id, { disk_gib: 20 });
    await api.as(owner).post(`/v1/instances/${id}/vm`);
    const { vm_id, epoch } = await agent.assigned(id);
    const observed = { kind: 'disk_grown', disk_bytes: 20 * GIB } as const;
    assert.deepEqual(await agent.client.report({ vm_id, epoch: epoch - 1, observed }), { outcome: 'fenced' });
    assert.equal((await show(id)).disk.growth, 'next_boot');
  });

  test('beyond the quota is refused, and the host is asked for nothing', async () => {
    const someone = await api.person();
    await setQuota(api.db, someone.org_id, { disk_gib: 10 });
    const { id } = await instanceIn(api, someone, 'running');
    const answer = await api.as(someone).patch(`/v1/instances/${id}`, { disk_gib: 11 });
    assertError(answer, 'QUOTA_EXCEEDED', /quota of disk_gib/);
    const { disk_grows, spec } = await agent.known(id);
    assert.deepEqual([disk_grows, spec.disk_bytes], [false, 8 * GIB]);
  });

  test('cpus and memory still need a stopped VM, and then nothing grows', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    assert.equal((await change(id, { disk_gib: 20, cpus: 2 })).status, 409);
    const { disk_gib, disk } = await show(id);
    assert.deepEqual([disk_gib, disk.growth], [8, undefined]);
  });
});

describe('PATCH of disk_gib while no guest runs', () => {
  for (const state of ['stopped', 'starting', 'restarting', 'suspended', 'stopping', 'failed'] as const) {
    test(`answers "next_boot" at once while ${state}`, async () => {
      const { id } = await instanceIn(api, owner, state);
      const { status, body } = await change(id, { disk_gib: 9 });
      assert.deepEqual([status, body.disk_gib, body.disk.growth], [200, 9, 'next_boot']);
    });
  }

  test('is "done" when the host of the next boot has looked', async () => {
    const { id } = await instanceIn(api, owner, 'stopped');
    await change(id, { disk_gib: 9 });
    await api.as(owner).post(`/v1/instances/${id}/vm`);
    await askedToGrow(id, 9);
    await agent.ready(id);
    assert.equal((await show(id)).disk.growth, 'next_boot');
    await grown(id, 9);
    assert.equal((await show(id)).disk.growth, 'done');
  });

  test('a size that the disk has already changes nothing', async () => {
    const { id } = await instanceIn(api, owner, 'running');
    const { body } = await change(id, { disk_gib: 8 });
    assert.equal(body.disk.growth, undefined);
  });
});
