/** What no route shows by itself: quotas under many at once, and what the end of an account does to organisations. */
import assert from 'node:assert/strict';
import { describe, test } from 'node:test';
import { transaction } from '../../src/control-plane/db/pool.ts';
import { leaveAllOrganisations } from '../../src/control-plane/organisations/members.ts';
import { checkQuota, setQuota } from '../../src/control-plane/organisations/quotas.ts';
import { newId } from '../../src/shared/ids.ts';
import { QUOTA_DEFAULTS } from '../../src/shared/quotas.ts';
import { accessApiForFile, makeInstance } from '../support/access-api.ts';

const api = await accessApiForFile();
const { db } = api;

describe('quotas', () => {
  test('of 20 concurrent creations under a quota of 7, 7 succeed', async () => {
    const { org_id } = await api.member();
    await setQuota(db, org_id, { instances: 7, disk_gib: 1000 });
    const outcomes = await Promise.allSettled(
      Array.from({ length: 20 }, () =>
        transaction(db, async (tx) => {
          await checkQuota(tx, QUOTA_DEFAULTS, org_id, { instances: 1, disk_gib: 10 });
          await makeInstance(tx as typeof db, org_id);
        }),
      ),
    );
    const refused = outcomes.filter((each) => each.status === 'rejected').map((each) => each.reason);
    assert.equal(refused.length, 13);
    for (const error of refused) {
      assert.equal(error.code, 'QUOTA_EXCEEDED');
      assert.match(error.message, /quota of instances is 7: 7 used, 1 more wanted\. Delete an instance/);
    }
  });

  test('cpus and memory count running and starting VMs, once, by their last boot', async () => {
    const { org_id } = await api.member();
    const host_id = newId('host');
    await db
      .insertInto('hosts')
      .values({ id: host_id, name: host_id, token_hash: Buffer.from(host_id) })
      .execute();
    const boots = [
      ['failed', 'running'],
      ['starting'],
      ['running', 'stopped'],
      ['suspended'],
      ['failed'],
      [],
    ];
    for (const states of boots) {
      const instance_id = await makeInstance(db, org_id);
      for (const [index, state] of states.entries()) {
        await db
          .insertInto('vms')
          .values({
            id: newId('vm'),
            instance_id,
            boot: index + 1,
            epoch: index + 1,
            host_id,
            desired: 'running',
            state: state as 'running',
          })
          .execute();
      }
    }
    await setQuota(db, org_id, { cpus: 6, memory_mib: 3072 });
    await transaction(db, (tx) => checkQuota(tx, QUOTA_DEFAULTS, org_id, { cpus: 2, memory_mib: 1024 }));
    const cpus = transaction(db, (tx) =>
      checkQuota(tx, QUOTA_DEFAULTS, org_id, { cpus: 3, memory_mib: 1024 }),
    );
    await assert.rejects(cpus, {
      code: 'QUOTA_EXCEEDED',
      message: /quota of cpus is 6: 4 used, 3 more wanted\. It counts VMs that run/,
    });
    const memory = transaction(db, (tx) =>
      checkQuota(tx, QUOTA_DEFAULTS, org_id, { cpus: 1, memory_mib: 1025 }),
    );
    await assert.rejects(memory, { code: 'QUOTA_EXCEEDED', message: /memory_mib/ });
    await setQuota(db, org_id, { cpus: null, memory_mib: null });
    await transaction(db, (tx) => checkQuota(tx, QUOTA_DEFAULTS, org_id, { cpus: 100, memory_mib: 100_000 }));
  });

  test('a quota is a bounded whole number, of an existing organisation', async () => {
    const { org_id } = await api.member();
    for (const limit of [-1, 1.5, 2 ** 31, Number.NaN]) {
      await assert.rejects(setQuota(db, org_id, { cpus: limit }), { code: 'INVALID_REQUEST' });
    }
    await assert.rejects(setQuota(db, newId('org'), { cpus: 1 }), { code: 'NOT_FOUND' });
  });
});

describe('the end of an account', () => {
  test('deletes organisations without other members, and keeps the others', async () => {
    const ann = await api.member();
    const bob = await api.member();
    await db
      .insertInto('memberships')
      .values({ org_id: bob.org_id, user_id: ann.user_id, role: 'admin' })
      .execute();
    await api.key({ org_id: ann.org_id, user_id: ann.user_id }, '*');
    await api.serviceAccount(ann.org_id, '*');
    await transaction(db, (tx) => leaveAllOrganisations(tx, ann.user_id));
    const left = await db
      .selectFrom('organisations')
      .select('id')
      .where('id', 'in', [ann.org_id, bob.org_id])
      .execute();
    assert.deepEqual(left, [{ id: bob.org_id }]);
    const memberships = await db
      .selectFrom('memberships')
      .select('org_id')
      .where('user_id', '=', ann.user_id)
      .execute();
    assert.deepEqual(memberships, []);
  });

  test('is refused, without a change, while a last owner has other members or instances', async () => {
    const ann = await api.member();
    const bob = await api.member();
    await db
      .insertInto('memberships')
      .values({ org_id: bob.org_id, user_id: ann.user_id, role: 'member' })
      .execute();
    await makeInstance(db, ann.org_id);
    await assert.rejects(
      transaction(db, (tx) => leaveAllOrganisations(tx, ann.user_id)),
      {
        code: 'CONFLICT',
        message: /The last owner of the organisation "Org" cannot delete the account\. Make another/,
      },
    );
    const count = await db
      .selectFrom('memberships')
      .select('org_id')
      .where('user_id', '=', ann.user_id)
      .execute();
    assert.equal(count.length, 2);
  });
});
