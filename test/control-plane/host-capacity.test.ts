/** VMs use of a remote host what its operator has set, and never more because of its reports. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { sql } from 'kysely';
import { listHosts, setHost } from '../../src/cli/server/hosts.ts';
import { apiForFile, type InstanceOut } from '../support/api.ts';
import { listenToRemoteHosts } from '../support/remote-hosts.ts';
import { FACTS } from '../support/scripted-agent.ts';
import { stateOf } from '../support/states.ts';

const api = await apiForFile();
const owner = await api.person();
const client = api.as(owner);
const far = await listenToRemoteHosts(api);
const GIB = 1024;

const hostOf = async ({ id }: InstanceOut) => {
  const answer = await client.post(`/v1/instances/${id}/vm`);
  return answer.status === 202 ? (await stateOf(api, owner, id)).host_id : answer.text;
};
const idOf = async (name: string) =>
  (await api.db.selectFrom('hosts').select('id').where('name', '=', name).executeTakeFirstOrThrow()).id;

test('a host without a capacity gets no VM, whatever it reports, and berth host ls prints the command to set one', async () => {
  const { agent } = await far.join('rack-2');
  await agent.connect({ ...FACTS, memory_mib: 64 * GIB * GIB, cpus: 4_096 });
  assert.equal(await hostOf(await api.instance(owner)), api.host_id);
  assert.match(await listHosts(far.server), /^rack-2 +up +0 +0 B, capacity not set/m);
  assert.match(
    await listHosts(far.server),
    /^rack-2 gets no VM, because its capacity is not set\. Set it: berth host set rack-2 --cpus N --memory GIB$/m,
  );
  await api.agent.silence();
  await api.db.updateTable('hosts').set({ last_seen_at: null }).where('name', '=', 'local').execute();
  assert.match(String(await hostOf(await api.instance(owner))), /No connected host has a capacity yet/);
});

test('a host gets VMs up to its capacity, or up to what it has if that is less', async () => {
  assert.match(await setHost(far.server, 'rack-2', { cpus: '2' }), /gets no VM before --memory is set too/);
  assert.match(
    await setHost(far.server, 'rack-2', { memory: '2' }),
    /gets VMs of at most 2 CPUs, and of 2 GiB in all/,
  );
  const rack_2 = await idOf('rack-2');
  const asked = { memory_mib: GIB, cpus: 2 };
  assert.equal(await hostOf(await api.instance(owner, asked)), rack_2);
  assert.match(await listHosts(far.server), /^rack-2 +up +1 +1 GiB of 2 GiB/m);
  assert.doesNotMatch(await listHosts(far.server), /gets no VM/);
  assert.match(
    String(await hostOf(await api.instance(owner, { memory_mib: GIB, cpus: 3 }))),
    /has 3 cpus and 1024 MiB of memory left/,
  );
  assert.match(
    String(await hostOf(await api.instance(owner, { memory_mib: 1_536 }))),
    /has 1 cpus and 1536 MiB of memory left/,
  );
  assert.equal(await hostOf(await api.instance(owner, asked)), rack_2);
  const { agent } = await far.join('small', { cpus: '64', memory: '512' });
  await agent.connect({ ...FACTS, memory_mib: GIB, cpus: 1 });
  assert.match(
    String(await hostOf(await api.instance(owner, { memory_mib: 2 * GIB }))),
    /2048 MiB of memory left/,
    'it has less than was set',
  );
  assert.equal(await hostOf(await api.instance(owner, { memory_mib: GIB })), await idOf('small'));
});

test('a capacity is a bounded whole number, of a host on another machine', async () => {
  for (const memory of ['0', '-1', '1.5', '65537', 'x', ''])
    await assert.rejects(
      setHost(far.server, 'rack-2', { memory }),
      /--memory is a whole number from 1 to 65536/,
    );
  await assert.rejects(setHost(far.server, 'rack-2', { cpus: '4097' }), /--cpus is a whole number/);
  await assert.rejects(setHost(far.server, 'rack-2', {}), /give --cpus N, --memory GIB, --labels/);
  await assert.rejects(setHost(far.server, 'local', { cpus: '1' }), /local is this machine/);
  await assert.rejects(setHost(far.server, 'nobody', { cpus: '1' }), /there is no host nobody/);
  await assert.rejects(far.join('rack-3', { cpus: '0' }), /--cpus is a whole number/);
});

test('a host that has given all its slots away runs the instances that it knows, and no other one', async () => {
  const { agent } = await far.join('full', { cpus: '64', memory: '64' });
  await agent.connect({ ...FACTS, memory_mib: 64 * GIB, cpus: 64 });
  const full = await idOf('full');
  const asked = { memory_mib: GIB, cpus: 2 };
  const [known, other] = [await api.instance(owner, asked), await api.instance(owner, asked)];
  // As many slots as a host has, without as many instances.
  await sql`alter table host_slots drop constraint host_slots_host_id_instance_id_key`.execute(api.db);
  await sql`
    insert into host_slots (host_id, slot, instance_id)
    select ${full}, slot, ${known.id} from generate_series(1, 65535) slot`.execute(api.db);
  assert.match(String(await hostOf(other)), /has run 65,535 instances that still exist/);
  const { epoch } = await api.db
    .selectFrom('disks')
    .select('epoch')
    .where('instance_id', '=', other.id)
    .executeTakeFirstOrThrow();
  assert.equal(epoch, 0);
  assert.equal(await hostOf(known), full);
  const { agent: roomy } = await far.join('roomy', { cpus: '4', memory: '4' });
  await roomy.connect({ ...FACTS, memory_mib: 64 * GIB, cpus: 64 });
  assert.equal(await hostOf(other), await idOf('roomy'));
});
