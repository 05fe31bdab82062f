/** The chain of the audit log, on a real database: it stays whole under concurrent writers and sealers, and an alteration is found. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, describe, test } from 'node:test';
import { sql } from 'kysely';
import { AuditLog, onAuditCommitted } from '../../src/control-plane/audit/append.ts';
import { sealAudit } from '../../src/control-plane/audit/seal-audit.ts';
import { openPool, transaction } from '../../src/control-plane/db/pool.ts';
import { newId, type OrgId, type UserId } from '../../src/shared/ids.ts';
import { startDatabase } from '../support/database.ts';
import { until } from '../support/waiting.ts';

const database = await startDatabase();
const db = openPool(database.url, () => undefined);
after(async () => {
  await db.destroy();
  await database.close();
});
const audit = new AuditLog(randomBytes(32));
const actor: UserId = newId('usr');

const append = (org_id: OrgId, n: number) =>
  transaction(db, (tx) =>
    audit.append(tx, org_id, {
      actor,
      action: 'test.append',
      target: `target ${n}`,
      ip: '127.0.0.1',
      request_id: null,
      data: { n, ключ: 'значение', nested: { b: [1, 'x', null], a: 0.5 } },
    }),
  );
async function written(length: number, org_id = newId('org')): Promise<OrgId> {
  for (let n = 1; n <= length; n++) await append(org_id, n);
  return org_id;
}
async function chained(length: number): Promise<OrgId> {
  const org_id = await written(length);
  await sealAudit(db, audit);
  return org_id;
}
const verify = (org_id: OrgId) => audit.verify(db, org_id);
const whole = (entries: number, unsealed = 0) => ({ entries, broken_at: null, unsealed, altered: null });
const COLUMNS = sql`at, actor, action, target, ip, request_id, data, mac`;

const ALTERATIONS: Record<string, ReturnType<typeof sql>> = {
  'another actor': sql`actor = 'usr_x'`,
  'another action': sql`action = 'test.other'`,
  'another target': sql`target = null`,
  'another address': sql`ip = '127.0.0.2'`,
  'another time': sql`at = at + interval '1 millisecond'`,
  'other data': sql`data = data || '{"n":0}'`,
  'another id': sql`id = id || 'x'`,
  'another mac': sql`mac = sha256(mac)`,
};

describe('the chain', () => {
  for (const [what, change] of Object.entries(ALTERATIONS)) {
    test(`an entry with ${what} is detected`, async () => {
      const org_id = await chained(5);
      await sql`update audit_log set ${change} where org_id = ${org_id} and seq = 3`.execute(db);
      assert.deepEqual(await verify(org_id), { ...whole(2), broken_at: 3 });
    });
  }
  test('a deleted entry is detected at its place: the first, a middle one, the last', async () => {
    for (const seq of [1, 3, 5]) {
      const org_id = await chained(5);
      await sql`delete from audit_log where org_id = ${org_id} and seq = ${seq}`.execute(db);
      assert.equal((await verify(org_id)).broken_at, seq);
    }
  });
  test('a deleted entry is detected also when later ones are renumbered', async () => {
    const org_id = await chained(5);
    await sql`delete from audit_log where org_id = ${org_id} and seq = 3`.execute(db);
    for (const seq of [4, 5]) {
      await sql`update audit_log set seq = seq - 1 where org_id = ${org_id} and seq = ${seq}`.execute(db);
    }
    await sql`update audit_heads set seq = 4 where org_id = ${org_id}`.execute(db);
    assert.deepEqual(await verify(org_id), { ...whole(2), broken_at: 3 });
  });
  test('an inserted entry is detected', async () => {
    const org_id = await chained(3);
    await sql`insert into audit_log (org_id, seq, id, ${COLUMNS}) select org_id, 4, id || 'x', ${COLUMNS}
      from audit_log where org_id = ${org_id} and seq = 3`.execute(db);
    assert.equal((await verify(org_id)).broken_at, 4);
  });
  test('two swapped entries are detected', async () => {
    const org_id = await chained(5);
    for (const [from, to] of [
      [2, 99],
      [3, 2],
      [99, 3],
    ]) {
      await sql`update audit_log set seq = ${to} where org_id = ${org_id} and seq = ${from}`.execute(db);
    }
    assert.deepEqual(await verify(org_id), { ...whole(1), broken_at: 2 });
  });
  test('an entry of another organisation breaks the chain', async () => {
    const [one, other] = [await chained(2), await chained(1)];
    await sql`delete from audit_log where org_id = ${one} and seq = 1`.execute(db);
    await sql`update audit_log set org_id = ${one} where org_id = ${other}`.execute(db);
    assert.notEqual((await verify(one)).broken_at, null);
  });
});

describe('entries that are not sealed yet', () => {
  test('are counted, and sealed in the order of their inserts', async () => {
    const org_id = await written(3);
    assert.deepEqual(await verify(org_id), whole(0, 3));
    await sealAudit(db, audit);
    assert.deepEqual(await verify(org_id), whole(3));
    await written(2, org_id);
    assert.deepEqual(await verify(org_id), whole(3, 2));
    const { rows } = await sql<{ n: number; seq: number | null }>`
      select (data->>'n')::int as n, seq from audit_log where org_id = ${org_id} order by serial`.execute(db);
    assert.deepEqual(rows, [
      ...[1, 2, 3].map((n) => ({ n, seq: n })),
      ...[1, 2].map((n) => ({ n, seq: null })),
    ]);
  });
  for (const [what, change] of Object.entries({ ...ALTERATIONS, 'another organisation': null })) {
    test(`an entry with ${what} is detected before and after it is sealed`, async () => {
      const org_id = await written(3);
      const other = newId('org');
      const { rows } = await sql<{ id: string }>`
        update audit_log set ${change ?? sql`org_id = ${other}`}
        where org_id = ${org_id} and data->>'n' = '2' or org_id = ${org_id} and target = 'target 2'
        returning id`.execute(db);
      const of = change === null ? other : org_id;
      assert.equal((await verify(of)).altered, rows[0]?.id);
      await sealAudit(db, audit);
      const fit = change === null ? 0 : 1;
      assert.deepEqual(await verify(of), { ...whole(fit), broken_at: fit + 1 });
    });
  }
  test('an entry that was inserted without the key is detected', async () => {
    const org_id = await written(1);
    await sql`insert into audit_log (org_id, id, ${COLUMNS}) select org_id, id || 'x', ${COLUMNS}
      from audit_log where org_id = ${org_id}`.execute(db);
    const { altered, unsealed } = await verify(org_id);
    assert.match(altered ?? '', /x$/);
    assert.equal(unsealed, 1);
  });
  test('a sealed entry is not accepted as an unsealed one', async () => {
    const org_id = await chained(3);
    await sql`update audit_log set seq = null where org_id = ${org_id} and seq = 3`.execute(db);
    const verdict = await verify(org_id);
    assert.equal(verdict.broken_at, 3);
    assert.notEqual(verdict.altered, null);
    await sealAudit(db, audit);
    assert.equal((await verify(org_id)).broken_at, 3);
  });
  test("altered entries do not hold up other organisations' entries", async () => {
    const org_id = newId('org');
    await sql`insert into audit_log (org_id, id, ${COLUMNS})
      select ${org_id}, 'aud_' || n, now(), 'x', 'x', null, null, null, '{}', '' from generate_series(1, 1200) n`.execute(
      db,
    );
    const other = await chained(1);
    assert.deepEqual(await verify(other), whole(1));
    assert.deepEqual(await verify(org_id), { ...whole(0), broken_at: 1 });
  });
});

describe('sealing', () => {
  test('a commit wakes the sealer of its process, a rollback does not', async () => {
    let woken = 0;
    const undo = onAuditCommitted(() => {
      woken += 1;
    });
    const entry = { actor, action: 'test.append', target: null, ip: null, request_id: null, data: {} };
    await assert.rejects(
      transaction(db, async (tx) => {
        await audit.append(tx, newId('org'), entry);
        throw new Error('rolled back');
      }),
      /rolled back/,
    );
    assert.equal(woken, 0);
    await written(1);
    assert.equal(woken, 1);
    undo();
  });

  test('concurrent sealers and writers leave every chain whole', async () => {
    const orgs = [newId('org'), newId('org'), newId('org')];
    const appends = orgs.flatMap((org_id) => Array.from({ length: 100 }, (_, n) => append(org_id, n)));
    const sealers = Array.from({ length: 8 }, async () => {
      for (let round = 0; round < 10; round++) await sealAudit(db, audit);
    });
    await Promise.all([...appends, ...sealers]);
    for (const org_id of orgs) {
      const { entries, unsealed, broken_at } = await verify(org_id);
      assert.deepEqual([entries + unsealed, broken_at], [100, null]);
    }
    await sealAudit(db, audit);
    for (const org_id of orgs) assert.deepEqual(await verify(org_id), whole(100));
  });

  test('one run seals more than a batch of entries, of many organisations', async () => {
    const orgs = Array.from({ length: 40 }, () => newId('org'));
    // In turns, so that nobody waits for a connection for as long as all 1,200 entries take.
    for (let n = 0; n < 30; n++) await Promise.all(orgs.map((org_id) => append(org_id, n)));
    await sealAudit(db, audit);
    for (const org_id of orgs) assert.deepEqual(await verify(org_id), whole(30));
  });

  test('a sealer that dies leaves every chain unchanged, and the next one seals its entries', async () => {
    const org_id = await chained(2);
    await written(3, org_id);
    const holder = openPool(database.url, () => undefined, 1);
    const held = Promise.withResolvers<void>();
    const holding = Promise.withResolvers<void>();
    const holds = transaction(holder, async (tx) => {
      await sql`select from audit_log where org_id = ${org_id} and target = 'target 3' and seq is null for update`.execute(
        tx,
      );
      holding.resolve();
      await held.promise;
    });
    await holding.promise;
    const sealing = sealAudit(db, audit);
    const died = assert.rejects(sealing);
    // It holds the sealer's lock and waits for the row in the statement that writes.
    const pid = await until('the sealer waits', async () => {
      const { rows } = await sql<{ pid: number }>`
        select pid from pg_stat_activity where wait_event_type = 'Lock' and query like '%update audit_log l%'`.execute(
        db,
      );
      return rows[0]?.pid ?? null;
    });
    await sealAudit(db, audit);
    assert.deepEqual(await verify(org_id), whole(2, 3), 'another sealer does nothing meanwhile');
    await sql`select pg_terminate_backend(${pid})`.execute(db);
    await died;
    assert.deepEqual(await verify(org_id), whole(2, 3));
    held.resolve();
    await holds;
    await holder.destroy();
    await sealAudit(db, audit);
    assert.deepEqual(await verify(org_id), whole(5));
  });
});
