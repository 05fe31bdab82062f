/** A VM with a restricted egress runs only on hosts that say that they enforce it, and its policy goes where the VM goes. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { cordonHost } from '../../src/cli/server/hosts.ts';
import { apiForFile, type InstanceOut } from '../support/api.ts';
import { listenToRemoteHosts } from '../support/remote-hosts.ts';
import { FACTS } from '../support/scripted-agent.ts';

const api = await apiForFile();
const owner = await api.person();
const client = api.as(owner);
const hosts = await listenToRemoteHosts(api);
const { agent: far } = await hosts.join('far', { cpus: '64', memory: '4096' });

const { enforces_egress: _, ...OLDER } = FACTS;
const EGRESS = { mode: 'allow', allow: ['example.com', '203.0.113.0/24:443'] };
const restricted = () => api.instance(owner, { egress: EGRESS });
const start = ({ id }: InstanceOut) => client.post(`/v1/instances/${id}/vm`);

test('503 where no host enforces it: neither one with the user network, nor one of an older version', async () => {
  await api.agent.connect({ ...FACTS, enforces_egress: false });
  await far.connect(OLDER);
  const { status, text } = await start(await restricted());
  assert.equal(status, 503, text);
  assert.match(text, /No connected host can enforce the egress mode \\"allow\\"/);
  assert.equal((await start(await api.instance(owner))).status, 202, 'mode open runs anywhere');
});

test('it starts on the host that enforces it, and takes its policy along when it moves', async () => {
  await far.connect(FACTS);
  const instance = await restricted();
  assert.equal((await start(instance)).status, 202);
  assert.deepEqual((await far.assigned(instance.id)).egress, EGRESS);
  await far.ready(instance.id);
  assert.equal((await client.delete(`/v1/instances/${instance.id}/vm`)).status, 202);
  await far.assigned(instance.id, 'it is stopped', ({ desired }) => desired === 'stopped');
  await far.stopped(instance.id);
  await cordonHost(hosts.server, 'far');
  assert.equal((await start(instance)).status, 503, 'the other host does not enforce it yet');
  await api.agent.connect(FACTS);
  assert.equal((await start(instance)).status, 202);
  assert.deepEqual((await api.agent.assigned(instance.id)).egress, EGRESS);
});
