/** `berth certificate renew` where nothing can be replaced. How hosts follow is in test/fleet/certificate.test.ts. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { findCertificates } from '../../src/control-plane/fleet/control-plane-store.ts';
import { hostsCertificate } from '../../src/control-plane/fleet/hosts-certificate.ts';
import { apiForFile } from '../support/api.ts';
import { serverCliForFile } from '../support/server-cli.ts';

const api = await apiForFile();
const { settings, berthWith } = await serverCliForFile(api);
const renew = () => berthWith(settings, ['certificate', 'renew']);

test('without a certificate, or a control plane that tells hosts of another, it changes nothing and says what to do', async () => {
  const none = await renew();
  assert.deepEqual([none.code, none.out], [5, '']);
  assert.match(none.err, /no control plane has listened to hosts yet\n {2}next: set BERTH_HOSTS_LISTEN/);
  await hostsCertificate(api.db, api.context.root_key);
  const alone = await renew();
  assert.deepEqual([alone.code, alone.out], [5, '']);
  assert.match(alone.err, /no control plane runs .*\n {2}next: start one/);
  assert.equal((await findCertificates(api.db)).next, null);
});
