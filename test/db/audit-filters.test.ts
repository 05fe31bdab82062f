/** The audit log of an organisation that has many entries: a page of few of them does not read the others. */
import assert from 'node:assert/strict';
import { after, describe, test } from 'node:test';
import { sql } from 'kysely';
import { type AuditFilter, auditPage } from '../../src/control-plane/audit/store.ts';
import { newId } from '../../src/shared/ids.ts';
import { startDatabase } from '../support/database.ts';

const ENTRIES = 20_000;
const database = await startDatabase();
after(() => database.close());
const org_id = newId('org');
const rare = newId('usr');

/** One entry in 5,000 is of the rare action, another one of the rare actor. */
await sql`
  insert into audit_log (org_id, id, at, actor, action, target, ip, request_id, data, mac)
  select ${org_id}, 'aud_' || lpad(n::text, 26, '0'), now(),
         case when n % 5000 = 7 then ${rare} else 'usr_' || n % 10 end,
         case when n % 5000 = 3 then 'org.change_quota' else 'vm.start' end,
         null, null, null, '{}', ''
  from generate_series(1, ${sql.lit(ENTRIES)}) n`.execute(database.db);
await sql`analyze audit_log`.execute(database.db);

interface Plan {
  readonly 'Index Name'?: string;
  readonly 'Rows Removed by Filter'?: number;
  readonly Plans?: readonly Plan[];
}

async function planOf(filter: AuditFilter, before: string | null): Promise<Plan> {
  const query = auditPage(database.db, org_id, filter, before, 50);
  const [row] = await query.explain<{ 'QUERY PLAN': readonly { Plan: Plan }[] }>('json', sql`analyze`);
  const root = row?.['QUERY PLAN'][0]?.Plan;
  for (let plan = root; plan !== undefined; plan = plan.Plans?.[0]) if (plan['Index Name']) return plan;
  throw new Error(`no index: ${JSON.stringify(root)}`);
}

describe('a page of the audit log reads only the rows that it shows', () => {
  const before = `aud_${'9'.repeat(26)}`;
  for (const [filter, index] of [
    [{}, 'audit_log_pkey'],
    [{ action: 'org.change_quota' }, 'audit_log_action'],
    [{ actor: rare }, 'audit_log_actor'],
  ] as const) {
    test(`filtered by ${Object.keys(filter)[0] ?? 'nothing'}`, async () => {
      for (const cursor of [null, before]) {
        const plan = await planOf(filter, cursor);
        assert.deepEqual([plan['Index Name'], plan['Rows Removed by Filter'] ?? 0], [index, 0]);
      }
    });
  }
});
