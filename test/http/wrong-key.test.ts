/** A control plane starts with the key that its database was filled with, and with no other. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { test } from 'node:test';
import { AuditLog } from '../../src/audit/append.ts';
import { dataKeysOpen, diskKeys } from '../../src/disks/data-keys.ts';
import { refuseWrongKey } from '../../src/launch/wrong-key.ts';
import { sealAudit } from '../../src/tasks/seal-audit.ts';
import { apiForFile } from '../support/api.ts';

const { db, context, person, instance } = await apiForFile();
const FILE = { secret_key: '/data/secrets/secret-key' };
const another = randomBytes(32);
async function start(key: Buffer, given: Buffer | null): Promise<void> {
  const audit = new AuditLog(key);
  const fits = (await dataKeysOpen(db, diskKeys(key, true))) ?? (await audit.beganWithThisKey(db));
  refuseWrongKey(fits, { secret_key: given }, FILE);
}

test('an empty database accepts any key', () => start(another, another));

test('the audit log detects another key, before there is an instance', async () => {
  const owner = await person();
  await context.audit.append(db, owner.org_id, {
    ...{ actor: owner.user_id, action: 'test.append', target: null, ip: null, request_id: null, data: {} },
  });
  await sealAudit(db, context.audit);
  await start(context.secret_key, null);
  await assert.rejects(
    start(another, another),
    /^StartError: BERTH_SECRET_KEY: is not the key .*, or unset it/,
  );
});

test('the keys of disks detect another key', async () => {
  await instance(await person());
  await db.deleteFrom('audit_log').execute();
  await start(context.secret_key, context.secret_key);
  await assert.rejects(start(another, null), {
    message: `${FILE.secret_key}: is not the key that this database was made with; restore that file from a backup, or set BERTH_SECRET_KEY`,
    exit_code: 2,
  });
});
