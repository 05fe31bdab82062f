/** berth audit, for people: the words of options, and names for ids. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { InstanceId } from '../../src/shared/ids.ts';
import { apiForFile, newName } from '../support/api.ts';
import { Cli } from '../support/cli.ts';
import { makeGenerations } from '../support/generations.ts';
import { makeKey } from '../support/people.ts';

const api = await apiForFile();

test('a table has words and names; csv and json have the record', async () => {
  const who = await api.person();
  const { key } = await makeKey(api.db, who, '*');
  const cli = new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key });
  const parent = newName();
  const { id } = await cli.json<{ id: InstanceId }>('create', parent);
  await cli.done('set', parent, '--auto-flush', '60s', '--idle-timeout', '2h');
  await makeGenerations(api.db, id, 1);
  await cli.done('fork', parent, `${parent}-copy`, '--no-flush');
  // The parent's own entry is not in this list: its name is asked for.
  assert.match(
    await cli.done('audit', '--type', 'instance.fork'),
    new RegExp(` of: ${parent}, generation: 1  `),
  );
  const change = ['audit', '--type', 'instance.change'];
  assert.match(await cli.done(...change), / {2}auto-flush: 1m, idle-timeout: 2h {2}/);
  const [record] = JSON.parse(await cli.done(...change, '--format', 'json')) as { details: string }[];
  const { credential: _credential, ...details } = JSON.parse(record?.details ?? '');
  assert.deepEqual(details, { change: { auto_flush_seconds: 60, idle_timeout_seconds: 7_200 } });
});

test('a change of the account or the organisation says what changed', async () => {
  const who = await api.person();
  const as = api.as(who);
  await as.patch('/v1/me', { name: 'Grace' });
  await as.patch(`/v1/orgs/${who.org_id}`, { name: 'Navy' });
  const { key } = await makeKey(api.db, who, '*');
  const cli = new Cli({ BERTH_URL: api.origin, BERTH_API_KEY: key });
  const listed = await cli.done('audit');
  assert.match(listed, / account\.change .* name: Grace {2}/);
  assert.match(listed, / org\.change .* name: Navy {2}/);
});
