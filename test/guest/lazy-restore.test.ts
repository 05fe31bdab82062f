/**
 * A guest on a host that has nothing of its disk runs before the disk has arrived, and sees no error when the agent that
 * fetches it dies. One story: each test continues where the previous one ended.
 */
import assert from 'node:assert/strict';
import { existsSync, readFileSync, statSync } from 'node:fs';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { overlayPaths } from '../../src/host/disk/overlay-files.ts';
import { vmFolder } from '../../src/host/vm/record.ts';
import type { InstanceId } from '../../src/shared/ids.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { GuestReader } from '../support/guest-reader.ts';
import { GuestWriter } from '../support/guest-writer.ts';
import { CANNOT_BOOT_GUESTS, type Installation } from '../support/installation.ts';
import { borrowInstallation, returnInstallation } from '../support/shared-installation.ts';
import { thorough } from '../support/thorough.ts';
import { until } from '../support/waiting.ts';

const THOROUGH = thorough(import.meta.filename);

const SUMS = '/root/sums';

describe('a start from the object store alone', { skip: CANNOT_BOOT_GUESTS, timeout: 590_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;

  const overlay = () => overlayPaths(berth.paths.overlays, guest.id);
  const isFilled = (): boolean => JSON.parse(readFileSync(overlay().sidecar, 'utf8')).filled === 'yes';
  const folder = () => vmFolder(berth.paths.vms, guest.id as InstanceId);
  const filled = () =>
    until(
      'the overlay is whole and read without us',
      () => {
        const { lazy } = JSON.parse(readFileSync(folder().record, 'utf8'));
        return isFilled() && lazy === null && !existsSync(join(folder().runtime, 'lazy.sock'));
      },
      { timeout_ms: 90_000 },
    );
  const check = () =>
    guest.shAgain(`echo 3 > /proc/sys/vm/drop_caches; sha256sum --quiet -c ${SUMS} && echo right`);

  before(async () => {
    berth = await borrowInstallation();
    guest = await GuestInstance.running(berth, 'lazy');
    // Random, so that it does not compress; in several files; and something of the image overwritten with zeroes.
    await guest.sh(
      'for n in 1 2 3; do dd if=/dev/urandom of=/srv/data.$n bs=1M count=32 status=none; done; ' +
        'dd if=/dev/zero of=/srv/zero bs=1M count=8 status=none; ' +
        `sha256sum /srv/data.* /srv/zero > ${SUMS}; sync`,
    );
    await guest.flush();
  });
  after(returnInstallation);

  test('accepts ssh before the disk has arrived, and reads correct data', async () => {
    await guest.stop();
    await berth.removeOverlays(guest.id);
    await guest.start();
    assert.equal(isFilled(), false);
    await guest.shAgain('true');
    assert.equal(await check(), 'right');
  });

  test('continues after a stop in the middle, with the blocks that have arrived', async () => {
    await guest.stop();
    await berth.removeOverlays(guest.id);
    await guest.start();
    // Its overlay would be whole before a guest on a busy machine has shut itself down.
    await guest.stop({ force: true });
    assert.equal(isFilled(), false);
    const { ino } = statSync(overlay().overlay);
    await guest.start();
    assert.equal(statSync(overlay().overlay).ino, ino);
    assert.equal(await check(), 'right');
  });

  test('whose agent is killed repeatedly shows its guest no error, and completes', THOROUGH, async () => {
    await guest.stop();
    await berth.removeOverlays(guest.id);
    await guest.start();
    // Long before it is filled: that begins some seconds after the guest is up.
    const from = berth.output.length;
    await berth.kill('agent');
    assert.equal(isFilled(), false);
    await guest.shAgain('true');
    const reader = await GuestReader.start(guest, SUMS);
    const writer = await GuestWriter.start(guest);
    await berth.printed(/VM adopted/, from, 60_000);
    const flushed = guest.flush();
    await until('a flush is under way', () => existsSync(join(folder().runtime, 'flush.sock')));
    const again = berth.output.length;
    await berth.kill('agent');
    await flushed.catch(() => undefined);
    await berth.printed(/VM adopted/, again, 60_000);
    await filled();
    await guest.shAgain('true');
    assert((await writer.stop()) > 0);
    await reader.stop();
    assert.equal(await check(), 'right');
  });

  test('saves the writes made meanwhile', THOROUGH, async () => {
    const sums = await guest.sh('sha256sum /srv/writer.*');
    await guest.flush();
    await guest.moveThroughStore();
    assert.equal(await guest.shAgain('sha256sum /srv/writer.*'), sums);
    assert.equal(await check(), 'right');
    await filled();
    await guest.stop();
    await guest.start();
    assert.equal(await check(), 'right');
  });
});
