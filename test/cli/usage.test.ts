/** berth usage, against the API. test/control-plane/usage.test.ts shows that the counts are right. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { InstanceId } from '../../src/shared/ids.ts';
import { apiForFile, newName } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { makeKey } from '../support/people.ts';

const api = await apiForFile();
const who = await api.person();
const { key } = await makeKey(api.db, who, '*');
const cli = new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key });

const use = (instance_id: InstanceId, hour: string, running_seconds: number) =>
  api.db
    .insertInto('usage_hours')
    .values({
      ...{ instance_id, org_id: who.org_id, hour: new Date(hour), running_seconds },
      ...{ cpu_seconds: 90, memory_mib_seconds: 1024 * 1800, stored_byte_seconds: 2 ** 31 * 3600 },
      ...{ flushed_bytes: 2 ** 20, http_bytes: 0 },
    })
    .execute();

test('usage shows totals, days or hours, of all instances or one', async () => {
  assert.equal(await cli.done('usage'), 'Nothing was used in this time.\n');
  const [name, gone] = [newName(), newName()];
  const { id } = await cli.json<{ id: InstanceId }>('create', name);
  const { id: gone_id } = await cli.json<{ id: InstanceId }>('create', gone);
  await use(id, '2026-11-02T10:00:00Z', 1800);
  await use(id, '2026-11-02T11:00:00Z', 3600);
  await use(id, '2026-11-03T11:00:00Z', 60);
  await use(gone_id, '2026-11-03T11:00:00Z', 7200);
  await api.db.deleteFrom('instances').where('id', '=', gone_id).execute();
  const range = ['--since', '2026-11-01', '--until', '2026-11-04'];

  const total = (await cli.done('usage', ...range)).split('\n').map((line) => line.trim().split(/ {2,}/));
  assert.deepEqual(total.slice(0, 3), [
    ['INSTANCE', 'RUNNING', 'CPU TIME', 'MEMORY', 'STORED', 'FLUSHED', 'HTTP'],
    [`${gone_id} (deleted)`, '2 h', '1 min 30 s', '0.50 GiB h', '2.00 GiB h', '1 MiB', '0 B'],
    [name, '1 h 31 min', '4 min 30 s', '1.50 GiB h', '6.00 GiB h', '3 MiB', '0 B'],
  ]);
  const days = await cli.json<{ start: string; running_seconds: number }[]>(
    ...['usage', name, '--by', 'day', ...range],
  );
  assert.deepEqual(
    days.map(({ start, running_seconds }) => [start.slice(0, 10), running_seconds]),
    [
      ['2026-11-03', 60],
      ['2026-11-02', 5400],
    ],
  );
  const hours = await cli.json<unknown[]>('usage', name, '--by', 'hour', ...range);
  assert.equal(hours.length, 3);
  assert.match(await cli.fails(2, 'usage', '--by', 'week'), /--by .*total, day, hour|total, day or hour/);
  assert.match(await cli.fails(3, 'usage', 'nowhere'), /nowhere/);
});
