/** A guest whose agent does not answer (hung, killed, or hostile): its VM can still be flushed and stopped. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';
import type { ReceiptBody } from '../support/rest-client.ts';
import { thorough } from '../support/thorough.ts';

const THOROUGH = thorough(import.meta.filename);

describe('a guest whose agent hangs', { skip: CANNOT_BOOT_GUESTS, ...THOROUGH, timeout: 590_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;

  const exec = (command: string[], timeout_seconds: number) =>
    berth.client.request<{ error: { message: string } }>(
      'POST',
      `${guest.path}/vm/exec`,
      { command, timeout_seconds },
      AbortSignal.timeout(45_000),
    );

  before(async () => {
    berth = await Installation.start();
    guest = await GuestInstance.running(berth, 'hung');
    // Whether it has ended is asked for meanwhile, and all else waits behind that question.
    exec(['sh', '-c', 'touch /run/begun; exec sleep 600'], 600).catch(() => undefined);
    await guest.sh('until [ -e /run/begun ]; do sleep 0.1; done');
    await guest.sh('echo kept > /srv/kept; sync; kill -STOP $(pidof qemu-ga)');
  });
  after(() => berth?.dispose());

  test('makes a command fail as unresponsive', async () => {
    const { status, body } = await exec(['true'], 1);
    assert.equal(status, 503);
    assert.match(body.error.message, /agent does not answer/);
  });

  test('is flushed without a freeze, and the receipt says so', async () => {
    const { status, body } = await berth.client.request<ReceiptBody>(
      'POST',
      `${guest.path}/vm/flush`,
      undefined,
      AbortSignal.timeout(45_000),
    );
    assert.deepEqual([status, body.consistency], [200, 'crash']);
  });

  test('is stopped nevertheless, with its synced data', async () => {
    await guest.stop({ force: true });
    await berth.removeOverlays(guest.id);
    await guest.start();
    assert.equal(await guest.sh('cat /srv/kept'), 'kept');
  });
});
