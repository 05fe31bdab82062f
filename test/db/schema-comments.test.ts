/** That the schema explains itself: comments on tables and columns, so that `schema.sql` is enough to understand the data. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { queryOnce, startDatabase } from '../support/database.ts';

const database = await startDatabase();
after(() => database.close());

/** What every reader understands, in any table. */
const CLEAR = [
  ...['id', 'name', 'title', 'body', 'only_one', 'size_bytes', 'cpus', 'memory_mib', 'disk_gib'],
  ...['created_at', 'updated_at', 'last_seen_at', 'last_used_at', 'expires_at', 'started_at', 'ended_at'],
  ...['finished_at', 'disabled_at', 'replaced_at', 'applied_at', 'state', 'status'],
];

test('every table has a comment, and every column that is not self-evident', async () => {
  const rows = await queryOnce<{ name: string }>(
    database.url,
    `select case when a.attnum is null then c.relname else c.relname || '.' || a.attname end as name
     from pg_class c
     left join pg_attribute a on a.attrelid = c.oid and a.attnum > 0 and not a.attisdropped and a.attname <> all($1)
     where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p')
       and (obj_description(c.oid, 'pg_class') is null
         or a.attnum is not null and col_description(c.oid, a.attnum) is null
           -- A reference is explained by the table that it names.
           and not exists (select from pg_constraint k
             where k.conrelid = c.oid and k.contype = 'f' and a.attnum = any(k.conkey))
           and not a.attname = any(array['org_id', 'user_id', 'instance_id', 'session_id', 'host_id', 'vm_id', 'event_id',
             'webhook_id', 'delivery_id']))
     order by 1`,
    [CLEAR],
  );
  assert.deepEqual(
    rows.map(({ name }) => name),
    [],
  );
});
