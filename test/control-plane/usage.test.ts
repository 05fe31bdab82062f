/** What instances used, by the hour and the day: counted from VMs, minutes, commits and HTTP ports. test/guest has the measurement. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { transaction } from '../../src/control-plane/db/pool.ts';
import {
  addHttpBytes,
  countLastStored,
  countUsage,
  deleteOldUsage,
} from '../../src/control-plane/usage/store.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { apiForFile } from '../support/api.ts';
import { assertError } from '../support/expect.ts';
import type { Person } from '../support/people.ts';
import { makePort } from '../support/ports.ts';
import { spreadsOf } from '../support/spreads.ts';
import { instanceIn } from '../support/states.ts';

const api = await apiForFile();
const { db, agent } = api;
const HOUR_MS = 3_600_000;
const GIB = 2 ** 30;
/** An hour in the past that no other test uses. */
const HOUR = new Date(Math.floor(Date.now() / HOUR_MS) * HOUR_MS - 30 * HOUR_MS);
const at = (minutes: number) => new Date(HOUR.getTime() + minutes * 60_000);

interface Usage {
  readonly instance_id: string;
  readonly start: string;
  readonly running_seconds: number;
  readonly cpu_seconds: number;
  readonly memory_gib_hours: number;
  readonly stored_gib_hours: number;
  readonly flushed_bytes: number;
  readonly http_bytes: number;
}

async function read(who: Person, query = '') {
  const answer = await api.as(who).get<{ data: Usage[]; next_cursor: string | null }>(`/v1/usage${query}`);
  assert.equal(answer.status, 200, answer.text);
  return answer.body;
}

/** As if everything was counted until then. */
const countedUntil = (until: Date) =>
  db.updateTable('usage_clock').set({ counted_until: until, stored_until: until }).execute();

/** A VM of 2 GiB that ran from minute 30 to minute 75 of HOUR, with a disk of half a GiB stored since minute 0. */
async function ranPastAnHour(who: Person): Promise<InstanceId> {
  const { id } = await instanceIn(api, who, 'running');
  await db
    .updateTable('instances')
    .set({ memory_mib: 2048, created_at: at(0) })
    .where('id', '=', id)
    .execute();
  await db
    .updateTable('disks')
    .set({ stored_bytes: GIB / 2 })
    .where('instance_id', '=', id)
    .execute();
  await db
    .updateTable('vms')
    .set({ started_at: at(30), stopped_at: at(75), state: 'stopped' })
    .where('instance_id', '=', id)
    .execute();
  return id;
}

describe('running time, memory and stored bytes', () => {
  test('are counted to the second in their hours, however often and however late the count runs', async () => {
    const owner = await api.person();
    const id = await ranPastAnHour(owner);
    await countedUntil(at(10));
    await transaction(db, countUsage);
    await transaction(db, countUsage);
    const { data } = await read(owner, `?from=${HOUR.toISOString()}&to=${at(119).toISOString()}`);
    const shown = data.map(({ start, running_seconds, memory_gib_hours, stored_gib_hours }) => {
      return [start, running_seconds, memory_gib_hours, stored_gib_hours];
    });
    assert.deepEqual(shown, [
      [at(60).toISOString(), 900, 0.5, 0.5],
      [at(0).toISOString(), 1800, 1, 0.416667],
    ]);
    const days = await read(owner, `?interval=day&from=${HOUR.toISOString()}&instance=${id}`);
    const total = days.data.reduce((sum, { running_seconds }) => sum + running_seconds, 0);
    assert.equal(total, 2_700);
    assert.ok(days.data.every(({ start }) => start.endsWith('T00:00:00.000Z')));
  });

  test('of a VM that runs now are at most one count behind', async () => {
    const owner = await api.person();
    const { id } = await instanceIn(api, owner, 'running');
    const began = new Date(Date.now() - 10_000);
    await db.updateTable('vms').set({ started_at: began }).where('instance_id', '=', id).execute();
    await countedUntil(new Date(began.getTime() - 1_000));
    await transaction(db, countUsage);
    const { data } = await read(owner, `?instance=${id}`);
    const seconds = data.reduce((sum, { running_seconds }) => sum + running_seconds, 0);
    assert.ok(seconds >= 10 && seconds < 60, `${seconds} s`);
  });
});

test('stored bytes are shown to the present second, counted or not, and stay when their instance is deleted', async () => {
  const owner = await api.person();
  const { id } = await instanceIn(api, owner, 'stopped');
  const seconds = 600;
  const began = new Date(Date.now() - seconds * 1000);
  await db
    .updateTable('instances')
    .set({ created_at: at(0) })
    .where('id', '=', id)
    .execute();
  await db.updateTable('disks').set({ stored_bytes: GIB }).where('instance_id', '=', id).execute();
  const requireShown = async () => {
    const { data } = await read(owner);
    const hours = data.reduce((sum, { stored_gib_hours }) => sum + stored_gib_hours, 0);
    assert.ok(Math.abs(hours * 3600 - seconds) < 60, `${hours * 3600} s`);
  };
  await countedUntil(began);
  await requireShown();
  await transaction(db, countUsage);
  await requireShown();
  await countedUntil(began);
  await db.deleteFrom('usage_hours').where('instance_id', '=', id).execute();
  await transaction(db, (tx) => countLastStored(tx, id));
  await db.deleteFrom('instances').where('id', '=', id).execute();
  await transaction(db, countUsage);
  await requireShown();
});

test('processor time is counted from the reported minutes, each once', async () => {
  const owner = await api.person();
  const { id } = await instanceIn(api, owner, 'running');
  await db.updateTable('instances').set({ cpus: 4 }).where('id', '=', id).execute();
  const cpu = { mean: 1.5, min: 1, max: 2 };
  const minute = new Date(Math.floor((Date.now() - 300_000) / 60_000) * 60_000).toISOString();
  const minutes = [{ instance_id: id, at: minute, spreads: { ...spreadsOf(null), cpu } }];
  for (const _ of [1, 2]) await agent.client.reportMinutes({ minutes }, AbortSignal.timeout(10_000));
  const { data } = await read(owner, `?instance=${id}`);
  assert.deepEqual(
    data.map(({ cpu_seconds }) => cpu_seconds),
    [90],
  );
});

test('bytes of HTTP ports are counted in both directions, in the hour of their report', async () => {
  const owner = await api.person();
  const { id } = await instanceIn(api, owner, 'running');
  const port_id = await makePort(db, id);
  for (const bytes of [700, 300]) await transaction(db, (tx) => addHttpBytes(tx, [{ port_id, bytes }]));
  const { data } = await read(owner, `?instance=${id}`);
  assert.deepEqual(
    data.map(({ http_bytes }) => http_bytes),
    [1_000],
  );
});

test('flushed bytes are counted with their generation, also of an instance that is deleted since', async () => {
  const owner = await api.person();
  const { id } = await instanceIn(api, owner, 'running');
  await agent.commit(id, 1);
  const [row] = await db.selectFrom('generations').selectAll().where('instance_id', '=', id).execute();
  assert.ok(row?.dirty_bytes);
  await db.deleteFrom('instances').where('id', '=', id).execute();
  const { data } = await read(owner);
  assert.deepEqual(
    data.map((each) => [each.instance_id, each.flushed_bytes]),
    [[id, row.dirty_bytes]],
  );
});

test('pages are the newest first, of the own organisation alone', async () => {
  const [owner, other] = [await api.person(), await api.person()];
  const ids = [await ranPastAnHour(owner), await ranPastAnHour(owner), await ranPastAnHour(other)];
  await countedUntil(at(0));
  await transaction(db, countUsage);
  const query = `?from=${HOUR.toISOString()}&to=${at(120).toISOString()}&limit=1`;
  const seen: string[] = [];
  for (let cursor: string | null = ''; cursor !== null; ) {
    const page: Awaited<ReturnType<typeof read>> = await read(
      owner,
      `${query}${cursor && `&cursor=${cursor}`}`,
    );
    seen.push(...page.data.map(({ start, instance_id }) => `${start} ${instance_id}`));
    cursor = page.next_cursor;
  }
  const expected = ids
    .slice(0, 2)
    .flatMap((id) => [0, 60].map((minute) => `${at(minute).toISOString()} ${id}`));
  assert.deepEqual(seen, expected.sort().reverse());
});

test('bad filters are refused by name, and usage of more than 13 months ago is deleted', async () => {
  const owner = await api.person();
  const now = new Date().toISOString();
  for (const [query, field] of [
    ['from=yesterday', 'from'],
    ['to=2026', 'to'],
    [`from=${now}&to=${at(0).toISOString()}`, 'from'],
    ['interval=week', 'interval'],
    ['instance=web', 'instance'],
  ]) {
    const answer = await api.as(owner).get(`/v1/usage?${query}`);
    assert.equal(assertError(answer, 'INVALID_REQUEST').details?.[0]?.field, field, answer.text);
  }
  const old = new Date(Date.now() - 400 * 24 * HOUR_MS);
  const { id } = await api.instance(owner);
  await db.insertInto('usage_hours').values({ instance_id: id, org_id: owner.org_id, hour: old }).execute();
  await deleteOldUsage(db);
  const left = await db.selectFrom('usage_hours').selectAll().where('instance_id', '=', id).execute();
  assert.deepEqual(left, []);
});
