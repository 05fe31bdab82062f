/** Assignment of SSH ports to new instances, and quarantine of a deleted instance's port. */
import assert from 'node:assert/strict';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, type TestContext, test } from 'node:test';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { freeDeleted } from '../../src/control-plane/disks/remove-objects.ts';
import { offerAddresses } from '../../src/control-plane/instances/ssh-address-store.ts';
import { FolderStore } from '../../src/object-store/folder-store.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { type InstanceOut, newName, startApi, type TestApi } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import type { Person } from '../support/people.ts';
import { instanceIn } from '../support/states.ts';

const FIRST = 22_000;
const folder = await mkdtemp(join(tmpdir(), 'berth-objects-'));
after(() => rm(folder, { recursive: true, force: true }));
const store = await FolderStore.open(folder);

async function apiWith(t: TestContext, ports: number): Promise<TestApi> {
  const api = await startApi({ first_port: FIRST, last_port: FIRST + ports - 1 });
  t.after(() => api.close());
  return api;
}

const create = (api: TestApi, who: Person) =>
  api.as(who).post<InstanceOut>('/v1/instances', { name: newName() });

async function portOf({ db }: TestApi, { id }: Pick<InstanceOut, 'id'>): Promise<number> {
  const row = await db
    .selectFrom('instances')
    .select('ssh_port')
    .where('id', '=', id)
    .executeTakeFirstOrThrow();
  return row.ssh_port;
}

/** The port of a new instance. */
const newPort = async (api: TestApi, who: Person) => portOf(api, await api.instance(who));

/** Deletes an instance, and waits until its port is free again. */
async function remove(api: TestApi, who: Person, id: InstanceId, ran: boolean): Promise<void> {
  await api.as(who).delete(`/v1/instances/${id}`);
  if (ran) await api.agent.deleted(id);
  await freeDeleted(api.db, store, api.context.log);
}

/** Has a VM of a new instance run, and deletes the instance. Answers its port. */
async function runAndRemove(api: TestApi, who: Person): Promise<number> {
  const instance = await instanceIn(api, who, 'running');
  const port = await portOf(api, instance);
  await remove(api, who, instance.id, true);
  return port;
}

const pool = ({ db }: TestApi) => db.selectFrom('free_ssh_ports').selectAll().orderBy('port').execute();

test('deleted instances that never ran leave their ports free, for other organisations too', async (t) => {
  const api = await apiWith(t, 5);
  const member = await api.person();
  const before = await pool(api);
  assert.equal(before.length, 5);
  for (let round = 0; round < 5; round++) {
    await remove(api, member, (await api.instance(member)).id, false);
  }
  assert.deepEqual(await pool(api), before);
  assert.equal((await create(api, await api.person())).status, 201);
});

test('an instance that was started and never ran is not quarantined', async (t) => {
  const api = await apiWith(t, 1);
  const member = await api.person();
  const before = await pool(api);
  const { id } = await instanceIn(api, member, 'starting');
  await remove(api, member, id, true);
  assert.deepEqual(await pool(api), before);
});

test('the port of an instance that ran is assigned only if no other is free', async (t) => {
  const api = await apiWith(t, 3);
  const member = await api.person();
  assert.equal(await runAndRemove(api, member), FIRST);
  const [quarantined] = await pool(api);
  assert.ok(quarantined?.quarantined_at, 'it is quarantined');
  const ports: number[] = [];
  for (let n = 0; n < 3; n++) ports.push(await newPort(api, member));
  assert.deepEqual(ports, [FIRST + 1, FIRST + 2, FIRST]);
});

test('if every port is quarantined, another organisation gets the one that was quarantined first', async (t) => {
  const api = await apiWith(t, 3);
  const member = await api.person();
  const running = async () => {
    const instance = await instanceIn(api, member, 'running');
    return { id: instance.id, port: await portOf(api, instance) };
  };
  const [low, middle, high] = [await running(), await running(), await running()];
  const order = [middle, high, low];
  for (const { id } of order) await remove(api, member, id, true);
  const stranger = await api.person();
  const ports: number[] = [];
  for (let n = 0; n < 3; n++) ports.push(await newPort(api, stranger));
  assert.deepEqual(
    ports,
    order.map(({ port }) => port),
  );
  assertError(await create(api, stranger), 'UNAVAILABLE', /22000-22002 are all in use.*BERTH_SSH_PORTS/);
});

test('concurrent creates of several organisations get different ports', async (t) => {
  const api = await apiWith(t, 12);
  const people = await Promise.all(Array.from({ length: 12 }, () => api.person()));
  const ports = await Promise.all(people.map((who) => newPort(api, who)));
  assert.deepEqual(
    ports.toSorted((a, b) => a - b),
    Array.from({ length: 12 }, (_, n) => FIRST + n),
  );
  assert.deepEqual(await pool(api), []);
});

test('a failed create leaves its port free', async (t) => {
  const api = await apiWith(t, 2);
  const member = await api.person();
  const { name } = await api.instance(member);
  assertError(await api.as(member).post('/v1/instances', { name }), 'CONFLICT');
  assert.equal(await newPort(api, member), FIRST + 1);
});

test('another range applies from the next start; instances keep their ports, which return to the range', async (t) => {
  const api = await apiWith(t, 3);
  const { db } = api;
  const member = await api.person();
  const kept = await api.instance(member);
  await runAndRemove(api, member);
  const restart = (first_port: number, last_port: number) =>
    transaction(db, (tx) => offerAddresses(tx, { ...api.context.ssh, first_port, last_port }));

  await restart(30_000, 30_001);
  const quarantined = (await pool(api)).filter(({ quarantined_at }) => quarantined_at !== null);
  assert.deepEqual(
    quarantined.map(({ port }) => port),
    [FIRST + 1],
    'a quarantine outlives the range',
  );
  assert.deepEqual(
    (await pool(api)).map(({ port }) => port),
    [FIRST + 1, 30_000, 30_001],
  );

  await restart(FIRST, FIRST + 2);
  assert.deepEqual(
    (await pool(api)).map(({ port }) => port),
    [FIRST + 1, FIRST + 2],
    'the port of an instance is not offered',
  );
  assert.deepEqual((await pool(api))[0], quarantined[0]);
  await remove(api, member, kept.id, false);
  assert.equal(await newPort(api, member), FIRST);
});
