/** The steps of a replacement of the certificate that hosts pin. How hosts follow is in test/fleet/certificate.test.ts. */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, test } from 'node:test';
import { sql } from 'kysely';
import { type ControlPlane, findCertificates } from '../../src/control-plane/fleet/control-plane-store.ts';
import {
  followReplacement,
  hostsCertificate,
  renewCertificate,
} from '../../src/control-plane/fleet/hosts-certificate.ts';
import { Membership } from '../../src/control-plane/fleet/peers.ts';
import { claimRootKey } from '../../src/control-plane/fleet/root-key.ts';
import { createLog } from '../../src/shared/log.ts';
import { startDatabase } from '../support/database.ts';

const { db, close } = await startDatabase();
after(close);
const root_key = (await claimRootKey(db, randomBytes(32))) ?? assert.fail('a root key');
const log = createLog('test', 'silent');
const at = (n: number, fingerprint: string): ControlPlane => ({
  ...{ id: `00000000000${n}`, url: `https://10.0.0.${n}:7500`, fingerprint },
});
const shown = async () => (await hostsCertificate(db, root_key)).fingerprint;
const told = async () => (await findCertificates(db)).next?.announced_seconds ?? 0;
const later = (seconds: number) =>
  sql`update installation set next_announced_at = next_announced_at - make_interval(secs => ${seconds})`.execute(
    db,
  );

test('a new certificate is shown after hosts were told for a minute; time in which nobody told them does not count', async () => {
  const old = await shown();
  const live = [at(1, old), at(2, old)];
  assert.ok(await renewCertificate(db, root_key));
  assert.equal(await renewCertificate(db, root_key), false, 'one at a time');
  await followReplacement(db, live);
  await later(3_600);
  await followReplacement(db, live);
  assert.ok((await told()) <= 5, `${await told()} s`);
  assert.equal(await shown(), old);
  for (let seconds = 0; seconds < 60; seconds += 4) {
    await later(4);
    await followReplacement(db, live);
  }
  const renewed = await shown();
  assert.notEqual(renewed, old);
  assert.deepEqual(await followReplacement(db, [at(1, renewed), at(2, old)]), {
    present: old,
    next: renewed,
  });
  assert.deepEqual(await followReplacement(db, [at(1, renewed), at(2, renewed)]), {
    ...{ present: renewed, next: null },
  });
  assert.equal((await findCertificates(db)).next, null);
});

test('one that was away during the end of a replacement is told to restart, and hosts are not told of it', async (t) => {
  const error = t.mock.method(log, 'error', () => undefined);
  const present = await shown();
  const other = new Membership({ url: 'https://10.0.0.1:7500', fingerprint: present }, { db, log });
  const late = new Membership({ url: 'https://10.0.0.2:7500', fingerprint: 'AB' }, { db, log });
  await other.beat();
  assert.equal(error.mock.callCount(), 0);
  await late.beat();
  assert.match(String(error.mock.calls[0]?.arguments[0]), /was replaced: restart it/);
  await other.beat();
  for (const each of [other, late])
    assert.deepEqual(
      each.live.map(({ id }) => id),
      [other.id],
    );
});
