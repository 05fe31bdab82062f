/** The database was set back to a time before a VM ran: the host that has what it wrote reports it, and the owner is told. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { type InstanceId, newId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { notificationsOf, raiseNotificationsOfEvents } from '../support/notifications.ts';
import { listenToRemoteHosts } from '../support/remote-hosts.ts';
import { FACTS } from '../support/scripted-agent.ts';
import { stateOf } from '../support/states.ts';

const api = await apiForFile();
const owner = await api.person();
const client = api.as(owner);
const far = await listenToRemoteHosts(api);
const { agent: other } = await far.join('other', { cpus: '4', memory: '4' });
await other.connect(FACTS);
await api.db.updateTable('hosts').set({ cordoned: true }).where('name', '=', 'other').execute();
const { id } = await api.instance(owner);
await client.post(`/v1/instances/${id}/vm`);
await api.agent.assigned(id);
await api.agent.ready(id);
const instance_id = id as InstanceId;

const told = async () => {
  const { body } = await client.get<{ readonly data: readonly { readonly type: string }[] }>(
    `/v1/events?resource=${id}`,
  );
  return body.data.filter(({ type }) => type === 'vm.recovered');
};
const report = (from: typeof other, vm_id = newId('vm')) =>
  from.client.reportUnknownVm({ instance_id, vm_id }).then(({ outcome }) => outcome);

test('its owner gets an event and a notification, which name the host', async () => {
  assert.equal(await report(other), 'accepted');
  await raiseNotificationsOfEvents(api.db);
  const message = /ran after that time on host other; what it wrote is not on the instance's disk/;
  assert.match(JSON.stringify(await told()), message);
  assert.match(JSON.stringify(await notificationsOf(client)), message);
  assert.equal((await stateOf(api, owner, id)).state, 'running', 'the VM runs on');
});

test('a host that makes up VMs tells at most once an hour', async () => {
  assert.equal(await report(other), 'ignored');
  assert.equal((await told()).length, 1);
});

test('nothing is told of a VM that is known, of one on the host of the next start, nor of an unknown instance', async () => {
  const { id: vm_id } = await api.db
    .selectFrom('vms')
    .select('id')
    .where('instance_id', '=', instance_id)
    .executeTakeFirstOrThrow();
  assert.equal(await report(other, vm_id), 'ignored');
  assert.equal(await report(api.agent), 'ignored');
  const made_up = { instance_id: newId('inst'), vm_id: newId('vm') };
  assert.deepEqual(await other.client.reportUnknownVm(made_up), { outcome: 'fenced' });
  assert.equal((await told()).length, 1);
});
