/** What is asked for all the time does not read the boots of the past, which are kept as long as their instance. */
import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import type { HostId } from '../../src/lib/ids.ts';
import { listAssignments } from '../../src/vms/assignment-store.ts';
import { listOnHost } from '../../src/vms/store.ts';
import { startDatabase } from '../support/database.ts';

const database = await startDatabase();
const { db } = database;
after(() => database.close());
const HOST = 'host_a' as HostId;

test('neither the assignments of a host nor what is waited for of it take a scan of all boots', async () => {
  await sql`insert into organisations (id, name, billing_email) values ('org_a', 'a', 'a@example.org')`.execute(
    db,
  );
  await sql`insert into hosts (id, name, token_hash) values (${HOST}, 'a', '')`.execute(db);
  await sql`
    insert into instances (id, org_id, created_by, name, image, cpus, memory_mib, disk_gib, ssh_port, deleting)
    select 'inst_' || n, 'org_a', 'user_a', n, 'debian-12', 1, 512, 1, n, n = 1 from generate_series(1, 200) n`.execute(
    db,
  );
  await sql`
    insert into vms (id, instance_id, boot, epoch, host_id, desired, state)
    select 'vm_' || n || '_' || boot, 'inst_' || n, boot, boot, ${HOST}, 'stopped',
      case when n = 2 and boot = 100 then 'running' else 'stopped' end
    from generate_series(1, 200) n, generate_series(1, 100) boot`.execute(db);
  await sql`analyze`.execute(db);
  await db.transaction().execute(async (tx) => {
    assert.equal((await listAssignments(tx, HOST)).length, 2);
    assert.equal((await listOnHost(tx, HOST)).length, 101);
    const { rows } = await sql<{ seq_scan: number }>`
      select seq_scan from pg_stat_xact_user_tables where relname = 'vms'`.execute(tx);
    assert.deepEqual(rows, [{ seq_scan: 0 }]);
  });
});
