/** A guest whose agent does not answer (hung, killed, or hostile): its VM can still be flushed and stopped. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import type { ReceiptBody } from '../support/rest-client.ts';
import { THOROUGH } from '../support/thorough.ts';

describe('a guest whose agent hangs', { skip: CANNOT_BOOT_GUESTS, ...THOROUGH, timeout: 200_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;

  before(async () => {
    berth = await Installation.start();
    guest = await GuestInstance.running(berth, 'hung');
    await guest.sh('echo kept > /srv/kept; sync; kill -STOP $(pidof qemu-ga)');
  });
  after(() => berth?.dispose());

  test('is flushed as after a power cut, and the receipt says so', async () => {
    const { status, body } = await berth.client.request<ReceiptBody>(
      'POST',
      `${guest.path}/vm/flush`,
      undefined,
      AbortSignal.timeout(45_000),
    );
    assert.deepEqual([status, body.consistency], [200, 'crash']);
  });

  test('is stopped all the same, with what it had synced', async () => {
    await guest.stop({ force: true });
    await berth.removeOverlays(guest.id);
    await guest.start();
    assert.equal(await guest.sh('cat /srv/kept'), 'kept');
  });
});
