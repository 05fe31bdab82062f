/** SSH addresses as pairs of a host name and a port, and the slots that keep VMs of one host apart. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { transaction } from '../../src/control-plane/db/pool.ts';
import {
  lockFreeAddress,
  offerAddresses,
  type SshAddress,
  takeAddress,
} from '../../src/control-plane/instances/ssh-address-store.ts';
import { insertInstance, removeInstance } from '../../src/control-plane/instances/store.ts';
import { type InstanceId, newId } from '../../src/shared/ids.ts';
import { apiForFile, type InstanceOut, newName, startApi } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import { instanceIn } from '../support/states.ts';

const [A, B, C] = ['127.77.1.1', '127.77.1.2', '127.77.1.3'];
const FIRST = 22_000;
const api = await apiForFile({ ssh_hosts: [A, B], first_port: FIRST, last_port: FIRST + 1 });
const owner = await api.person();
const client = api.as(owner);
const textOf = ({ host, port }: SshAddress) => `${host}:${port}`;

test('two names with two ports hold four running instances, each with its own address and slot', async () => {
  const made: InstanceOut[] = [];
  for (let n = 0; n < 4; n++) made.push(await instanceIn(api, owner, 'running'));
  assert.deepEqual(
    made.map(({ ssh }) => textOf(ssh)),
    [`${A}:${FIRST}`, `${B}:${FIRST}`, `${A}:${FIRST + 1}`, `${B}:${FIRST + 1}`],
  );
  const refused = await client.post('/v1/instances', { name: newName() });
  assertError(refused, 'UNAVAILABLE', /22000-22001 of 127.77.1.1, 127.77.1.2 are all in use.*BERTH_SSH_HOST/);
  const slots = async () => {
    const found = await Promise.all(made.map(({ id }) => api.agent.known(id)));
    return found.map(({ spec }) => spec.slot);
  };
  const before = await slots();
  assert.equal(new Set(before).size, 4, 'no two VMs of a host have the same slot');
  for (const { id, ssh } of made) {
    const { body } = await client.get<{ host: string; port: number; command: string }>(
      `/v1/instances/${id}/ssh`,
    );
    assert.deepEqual([body.host, body.port], [ssh.host, ssh.port]);
    assert.equal(body.command, `ssh -p ${ssh.port} root@${ssh.host}`);
  }
  for (const { id } of made) {
    await client.delete(`/v1/instances/${id}/vm`);
    await api.agent.stopped(id);
  }
  for (const { id } of made.toReversed()) {
    await client.post(`/v1/instances/${id}/vm`);
    await api.agent.assigned(id);
  }
  assert.deepEqual(await slots(), before, 'an instance keeps its slot on the host');
});

test('an only name is renamed with its instances; with two names every address is fixed', async (t) => {
  const other = await startApi({ ssh_hosts: [A], first_port: FIRST, last_port: FIRST + 1 });
  t.after(() => other.close());
  const who = await other.person();
  const offerHosts = (...hosts: string[]) =>
    transaction(other.db, (tx) => offerAddresses(tx, { ...other.context.ssh, hosts }));
  const { id } = await other.instance(who);
  const nameOf = async (instance: string) =>
    (await other.as(who).get<InstanceOut>(`/v1/instances/${instance}`)).body.ssh.host;
  const freeThere = async () =>
    (await other.db.selectFrom('free_ssh_ports').select(['host', 'port']).orderBy('host').execute()).map(
      textOf,
    );

  await offerHosts(B);
  assert.equal(await nameOf(id), B);
  assert.deepEqual(await freeThere(), [`${B}:${FIRST + 1}`]);
  await offerHosts(B, C);
  assert.equal(await nameOf(id), B);
  assert.deepEqual(await freeThere(), [`${B}:${FIRST + 1}`, `${C}:${FIRST}`, `${C}:${FIRST + 1}`]);
  await offerHosts(C);
  assert.equal(await nameOf(id), B, 'it keeps a name that new instances do not get');
  assert.deepEqual(await freeThere(), [`${C}:${FIRST}`, `${C}:${FIRST + 1}`]);
  await offerHosts(A);
  assert.equal(await nameOf(id), B);
  await offerHosts(A, B);
  assert.deepEqual(await freeThere(), [`${A}:${FIRST}`, `${A}:${FIRST + 1}`, `${B}:${FIRST + 1}`]);
});

type Step =
  | { readonly kind: 'create' }
  | { readonly kind: 'remove'; readonly nth: number }
  | { readonly kind: 'offer'; readonly hosts: readonly string[]; readonly ports: number };

const steps: fc.Arbitrary<Step[]> = fc.array(
  fc.oneof(
    { weight: 4, arbitrary: fc.constant({ kind: 'create' } as const) },
    { weight: 2, arbitrary: fc.record({ kind: fc.constant('remove' as const), nth: fc.nat(9) }) },
    {
      weight: 2,
      arbitrary: fc.record({
        kind: fc.constant('offer' as const),
        hosts: fc.uniqueArray(fc.constantFrom(A, B, C), { minLength: 1 }),
        ports: fc.integer({ min: 1, max: 3 }),
      }),
    },
  ),
  { maxLength: 25 },
);

interface Range {
  readonly hosts: readonly string[];
  readonly first_port: number;
  readonly last_port: number;
}

const { db } = api;
const used = async () => {
  const columns = ['id', 'ssh_host as host', 'ssh_port as port'] as const;
  const rows = await db.selectFrom('instances').select(columns).execute();
  return new Map(rows.map((row) => [row.id, textOf(row)]));
};
const free = async () =>
  (await db.selectFrom('free_ssh_ports').select(['host', 'port']).execute()).map(textOf);
const addressesOf = ({ hosts, first_port, last_port }: Range) =>
  hosts.flatMap((host) =>
    Array.from({ length: last_port - first_port + 1 }, (_, n) => `${host}:${first_port + n}`),
  );
const hostOf = (address: string) => address.split(':')[0] ?? '';

/** What a create does with addresses. */
const create = (range: Range) =>
  transaction(db, async (tx): Promise<SshAddress | undefined> => {
    const address = await lockFreeAddress(tx, range, []);
    if (!address) return undefined;
    await takeAddress(tx, address);
    await insertInstance(tx, {
      ...{ image: 'debian-12', cpus: 1, memory_mib: 512, disk_gib: 8 },
      ...{ keep_last: 1, keep_daily_days: 0, forked_from: null, user_data: null },
      ...{ id: newId('inst'), org_id: owner.org_id, created_by: owner.user_id, name: newName() },
      ...{ idle_timeout_seconds: null, auto_flush_seconds: null, wake_on_connect: false, restart: 'never' },
      ...{ egress_mode: 'open', egress_allow: [], labels: {}, host_labels: {}, tolerations: [] },
      ...{ ssh_host: address.host, ssh_port: address.port },
    });
    return address;
  });

async function createOne(range: Range): Promise<void> {
  // A removed instance's address may be outside of the range until the next offer.
  const claimable = (await free()).filter((each) => addressesOf(range).includes(each));
  const address = await create(range);
  assert.equal(address === undefined, claimable.length === 0);
  if (address) assert(claimable.includes(textOf(address)));
}

async function removeOne(nth: number): Promise<void> {
  const id = [...(await used()).keys()][nth];
  if (id !== undefined) await transaction(db, (tx) => removeInstance(tx, id as InstanceId));
}

async function offer(range: Range): Promise<void> {
  const before = await used();
  const names = new Set([...before.values(), ...(await free())].map(hostOf));
  await transaction(db, (tx) => offerAddresses(tx, range));
  const after = await used();
  const [only = ''] = range.hosts;
  const is_renamed = names.size === 1 && range.hosts.length === 1;
  for (const [id, address] of before)
    assert.equal(after.get(id), is_renamed ? address.replace(hostOf(address), only) : address);
  const given = new Set(after.values());
  const left = addressesOf(range).filter((each) => !given.has(each));
  assert.deepEqual((await free()).toSorted(), left.toSorted());
}

test('whatever is created, removed and offered: no address is given twice, and none changes once there are two names', async () => {
  await fc.assert(
    fc.asyncProperty(steps, async (taken) => {
      await db.deleteFrom('vms').execute();
      await db.deleteFrom('instances').execute();
      await db.deleteFrom('free_ssh_ports').execute();
      let range: Range = { hosts: [A], first_port: FIRST, last_port: FIRST + 1 };
      await offer(range);
      for (const step of taken) {
        if (step.kind === 'create') await createOne(range);
        else if (step.kind === 'remove') await removeOne(step.nth);
        else {
          range = { hosts: step.hosts, first_port: FIRST, last_port: FIRST + step.ports - 1 };
          await offer(range);
        }
        const [given, left] = [[...(await used()).values()], await free()];
        assert.equal(new Set([...given, ...left]).size, given.length + left.length);
      }
    }),
    { numRuns: 25 },
  );
});
