/** Where a failed VM starts again: its last writes may be on one host alone. test/fleet/lost-host.test.ts has a silent host. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setHost } from '../../src/cli/server/hosts.ts';
import type { HostId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { listenToRemoteHosts } from '../support/remote-hosts.ts';
import { FACTS, type ScriptedAgent } from '../support/scripted-agent.ts';
import { stateOf } from '../support/states.ts';

const api = await apiForFile();
const { db } = api;
const owner = await api.person();
const client = api.as(owner);
const far = await listenToRemoteHosts(api);

const hosts = new Map<string, { readonly name: string; readonly agent: ScriptedAgent }>();
for (const name of ['one', 'two']) {
  const { agent } = await far.join(name, { cpus: '4', memory: '4' });
  await agent.connect(FACTS);
  const { id } = await db.selectFrom('hosts').select('id').where('name', '=', name).executeTakeFirstOrThrow();
  hosts.set(id, { name, agent });
}
await api.agent.silence();
await db
  .updateTable('hosts')
  .set({ last_seen_at: null })
  .where('id', 'not in', [...hosts.keys()] as HostId[])
  .execute();

test('nowhere else while its host is connected and does not take it, until a stop has saved them', async () => {
  const { id } = await api.instance(owner);
  const vm = `/v1/instances/${id}/vm`;
  assert.equal((await client.post(vm)).status, 202);
  const { host_id } = await stateOf(api, owner, id);
  const { name, agent } = hosts.get(host_id ?? '') ?? assert.fail('its host');
  await agent.assigned(id);
  await agent.ready(id);
  await agent.failed(id);
  await setHost(far.server, name, { taints: 'full' });
  assertError(await client.post(vm), 'UNAVAILABLE', /Stop the VM/);
  assert.equal((await client.delete(vm)).status, 202);
  await agent.assigned(id, 'it is to stop', ({ desired }) => desired === 'stopped');
  await agent.stopped(id);
  assert.equal((await client.post(vm)).status, 202);
  assert.notEqual((await stateOf(api, owner, id)).host_id, host_id);
});
