/** A control plane of the version before, on a database that the next version migrates while it serves. */
import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { cp, mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { migrate, requireMigrated } from '../../src/control-plane/db/migrate.ts';
import { apiForFile, type InstanceOut } from '../support/api.ts';
import { instanceIn, stateOf } from '../support/states.ts';
import { until } from '../support/waiting.ts';

const SQL = join(import.meta.dirname, '..', '..', 'src', 'control-plane', 'db', 'sql');
/** Each kind of change that may expand, in the tables that every request reads whole. */
const EXPANDING = `-- expand
create table later (id text primary key, instance_id text references instances (id) on delete cascade);
alter table instances add column later text not null default 'later', add column later_at timestamptz;
alter table disks add column later int not null default 7;
alter table vms add column later jsonb;
alter table generations add column later int;
alter table hosts add column later text not null default '';
create index instances_later on instances (later);
`;

const api = await apiForFile();
const owner = await api.person();

test('it serves every request while the database is expanded, and starts on it afterwards', async (t) => {
  const running = await instanceIn(api, owner, 'running');
  const answers: { readonly status: number; readonly text: string }[] = [];
  let migrated = false;
  const client = api.as(owner);
  // Often enough that statements are prepared before the tables change.
  const writes = Array.from({ length: 4 }, async () => {
    for (let after = 0; after < 20; after += migrated ? 1 : 0) {
      const headers = { 'idempotency-key': randomUUID() };
      const made = await client.post<InstanceOut>('/v1/instances', { name: randomUUID() }, { headers });
      answers.push(made);
      answers.push(await client.get(`/v1/instances/${running.id}`), await client.get('/v1/instances'));
      if (made.status === 201) answers.push(await client.delete(`/v1/instances/${made.body.id}`));
    }
  });
  let generation = 0;
  const commits = (async () => {
    for (let after = 0; after < 20; after += migrated ? 1 : 0) {
      const committed = await api.agent.commit(running.id, generation + 1).catch(() => null);
      if (committed !== null) assert.equal(committed.outcome, 'committed');
      if (committed !== null) generation += 1;
    }
  })();
  await until('the load runs', () => answers.length > 200 && generation > 20);
  const folder = await mkdtemp(join(tmpdir(), 'berth-sql-'));
  t.after(() => rm(folder, { recursive: true, force: true }));
  await cp(SQL, folder, { recursive: true });
  await writeFile(join(folder, '999999-later.sql'), EXPANDING);
  // The load ends, even if it fails.
  const applied = await migrate(api.database.url, { dir: folder }).finally(() => {
    migrated = true;
  });
  assert.deepEqual(applied, ['999999-later.sql']);
  await Promise.all([...writes, commits]);
  const refused = answers.filter(({ status }) => status >= 300);
  // A statement that was planned before is answered as unavailable, once.
  assert.deepEqual(
    refused.filter(({ status }) => status !== 503).map(({ text }) => text),
    [],
  );
  t.diagnostic(`${refused.length} of ${answers.length} requests were to be repeated`);
  assert.equal((await stateOf(api, owner, running.id)).disk.generation, generation);
  await requireMigrated(api.database.url);
});
