/**
 * A flush without a freeze: its receipt covers every write that QEMU had completed, also when the guest never sent a FLUSH. The
 * guest agent is stopped, and the guest writes past its page cache to blocks that were never written.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after, before, describe, test } from 'node:test';
import { killProcess } from '../../src/host/qemu/qemu-process.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';

const MIB = 2 ** 20;
/** Free space near the end of a disk of 2 GiB. */
const AT_MIB = 1_900;
/** The freeze gives up after 3 s. With the thaw waited for it took 13. */
const LONGEST_MS = 11_000;

describe('a guest whose agent is stopped and that sends no FLUSH', {
  skip: CANNOT_BOOT_GUESTS,
  timeout: 590_000,
}, () => {
  let berth: Installation;
  let guest: GuestInstance;
  let next_mib = AT_MIB;

  /** Writes to extents that were never written; answers what they hold and how to read it. */
  const write = async (mib: number) => {
    const at = next_mib;
    next_mib += mib + 1;
    const data = randomBytes(mib * MIB);
    await guest.sh(
      `dd of=/dev/vda bs=64k iflag=fullblock oflag=direct,seek_bytes seek=${at * MIB} conv=notrunc status=none`,
      data,
    );
    const read = `dd if=/dev/vda bs=64k iflag=direct,skip_bytes,count_bytes skip=${at * MIB} count=${mib * MIB} status=none | sha256sum`;
    return { read, expected: await guest.sh(read) };
  };
  const stopAgent = () => guest.sh('kill -STOP $(pidof qemu-ga)');
  const kill = async () => {
    killProcess(guest.qemu, 'SIGKILL');
    await guest.becomes('failed', ({ state }) => state === 'failed');
  };

  before(async () => {
    berth = await Installation.start();
    guest = await GuestInstance.running(berth, 'crash-receipts');
  });
  after(() => berth?.dispose());

  test("has the receipt's data after a kill of QEMU, and from the object store alone", async () => {
    await stopAgent();
    const { read, expected } = await write(4);
    const receipt = await guest.flush();
    assert.equal(receipt.consistency, 'crash');
    assert(receipt.dirty_bytes >= 4 * MIB, `${receipt.dirty_bytes} bytes were dirty`);
    await kill();
    await guest.start();
    assert.equal(await guest.sh(read), expected, 'with the overlay');
    await stopAgent();
    await guest.flush();
    await kill();
    await berth.removeOverlays(guest.id);
    await guest.start();
    assert.equal(await guest.sh(read), expected, 'without the overlay');
  });

  test('is flushed soon after the freeze times out', async () => {
    await stopAgent();
    await write(1);
    const { consistency, duration_ms } = await guest.flush();
    assert.equal(consistency, 'crash');
    assert(duration_ms < LONGEST_MS, `it took ${duration_ms} ms`);
  });
});
