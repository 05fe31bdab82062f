/** Mails that wait in the outbox of a database from before they were rows of their own go on as they were. */
import assert from 'node:assert/strict';
import { readdir } from 'node:fs/promises';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { migrate } from '../../src/db/migrate.ts';
import { queryOnce, startDatabase } from '../support/database.ts';

const database = await startDatabase();
after(() => database.close());
const NAMES = await readdir(join(import.meta.dirname, '..', '..', 'src', 'db', 'sql'));

test('what waited to be mailed waits on: of a kind together, of security each apart, tries and leases kept', async () => {
  const url = await database.createEmpty('before');
  await migrate(url, { only: new Set(NAMES.filter((name) => name < '000038')) });
  for (const text of [
    `insert into users (id, email, email_key, name, password_hash) values ('usr_1', 'a@b', 'a@b', '', 'x')`,
    `insert into notifications (id, recipient, kind, title, body, data, count, position, event_id, created_at, raised_at)
     select 'ntf_' || lpad(n::text, 2, '0'), 'usr_1',
       case when n <= 30 then 'api_key.created' when n <= 32 then 'ssh_key.added' else 'password.changed' end,
       't', 'b', '{}', 1, n, 'evt_' || n, now(), now() from generate_series(1, 35) n`,
    `insert into notification_mails (notification_id, attempts, due_at)
     select 'ntf_' || lpad(n::text, 2, '0'), case n when 31 then 3 when 35 then 1 else 0 end,
       timestamptz '2030-01-01T00:00:00Z' + make_interval(secs => n) from generate_series(1, 35) n where n <> 34`,
  ]) {
    await queryOnce(url, text);
  }
  await migrate(url);
  const mails = await queryOnce(
    url,
    `select user_id, batch, cardinality(notifications) as told, notifications[1] as first, more, attempts,
       extract(epoch from due_at - timestamptz '2030-01-01T00:00:00Z')::int as due
     from notification_mails order by first`,
  );
  const of = { user_id: 'usr_1', told: 1, more: 0 };
  assert.deepEqual(mails, [
    { ...of, batch: 'api_key.created', told: 20, first: 'ntf_01', more: 10, attempts: 0, due: 30 },
    { ...of, batch: 'ssh_key.added', first: 'ntf_31', attempts: 3, due: 31 },
    { ...of, batch: 'ssh_key.added', first: 'ntf_32', attempts: 0, due: 32 },
    { ...of, batch: 'ntf_33', first: 'ntf_33', attempts: 0, due: 33 },
    { ...of, batch: 'ntf_35', first: 'ntf_35', attempts: 1, due: 35 },
  ]);
  const [{ count } = {}] = await queryOnce(url, 'select count(*)::int from notifications');
  assert.equal(count, 35);
});
