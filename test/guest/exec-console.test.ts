/** What reaches into a guest beside SSH: commands, the serial console, metrics, user_data; and a disk that grows. */
import assert from 'node:assert/strict';
import { after, before, describe, test } from 'node:test';
import type { ExecResult } from '../../src/agent-api/host-calls.ts';
import { GuestInstance } from '../support/guest-instance.ts';
import { CANNOT_BOOT_GUESTS, Installation } from '../support/installation.ts';

describe('a guest', { skip: CANNOT_BOOT_GUESTS, timeout: 400_000 }, () => {
  let berth: Installation;
  let guest: GuestInstance;

  const exec = (command: readonly string[], more: object = {}) =>
    berth.client.expect<ExecResult>(200, 'POST', `${guest.path}/vm/exec`, { command, ...more });
  const sh = async (script: string) => (await exec(['sh', '-c', script])).stdout.trim();

  before(async () => {
    berth = await Installation.start();
    guest = await GuestInstance.running(berth, 'box');
  });
  after(() => berth?.dispose());

  test('runs a command as root, with what goes in and what comes out of it', async () => {
    const script = 'id -u; pwd; cat; echo "$1" >&2; exit 7';
    const result = await exec(['sh', '-c', script, 'x', 'a "b" $c'], { stdin: 'in ä\n' });
    assert.deepEqual(result, {
      exit_code: 7,
      stdout: '0\n/\nin ä\n',
      stderr: 'a "b" $c\n',
      truncated: false,
    });
  });

  test('says how a command ended that did not end by itself', async () => {
    assert.equal((await exec(['sh', '-c', 'kill -TERM $$'])).exit_code, 128 + 15);
    assert.equal((await exec(['/no/such/program'])).exit_code, 127);
  });

  test('keeps the first mebibyte of what a command prints', async () => {
    const result = await exec(['sh', '-c', 'yes 0123456 | head -c 2000000; yes e | head -c 10 >&2']);
    assert.deepEqual([result.stdout.length, result.truncated], [1024 * 1024, true]);
    assert.equal(result.stderr, 'e\n'.repeat(5));
  });

  test('kills a command and what it started when its time is over, and tells what it printed', async () => {
    const result = await exec(['sh', '-c', 'echo begun; sleep 4321 & sleep 4321'], { timeout_seconds: 1 });
    assert.deepEqual(result, { exit_code: null, stdout: 'begun\n', stderr: '', truncated: false });
    assert.equal(await sh('pgrep -f "^sleep 432[1]" || echo none'), 'none');
  });

  test('commands go on through the freeze of a flush', async () => {
    const long = exec([
      'sh',
      '-c',
      'for i in 1 2 3 4 5 6 7 8; do echo $i > /srv/n; sync; sleep 0.2; done; echo end',
    ]);
    for (let i = 0; i < 4; i++) {
      const [receipt, short] = await Promise.all([guest.flush(), exec(['echo', 'meanwhile'])]);
      assert.equal(receipt.consistency, 'filesystem');
      assert.equal(short.stdout, 'meanwhile\n');
    }
    assert.equal((await long).stdout, 'end\n');
  });

  test('a disk that has grown is larger in the guest, from its overlay and from the store alone', async () => {
    const size = 'df --output=size -BM / | tail -1';
    const before_mib = Number.parseInt(await sh(size), 10);
    await sh('head -c 1000000 /dev/urandom > /srv/kept; sync; cp /srv/kept /srv/kept2; sync');
    const sum = await sh('sha256sum < /srv/kept');
    await guest.stop();
    const grow = (disk_gib: number) =>
      berth.client.expect(200, 'PATCH', guest.path, { disk_gib, cpus: 2, memory_mib: 300 });
    await grow(3);
    await guest.start();
    const grown_mib = Number.parseInt(await sh(size), 10);
    assert.ok(grown_mib > before_mib + 900, `${before_mib} MiB became ${grown_mib}`);
    assert.equal(await sh('sha256sum < /srv/kept'), sum);
    assert.equal(await sh('nproc'), '2');
    // Beyond the old end.
    await sh('head -c 5000000 /dev/urandom > /srv/more; sync');
    const more = await sh('sha256sum < /srv/more');
    await guest.stop();
    await grow(5);
    await berth.removeOverlays(guest.id);
    await guest.start();
    assert.ok(Number.parseInt(await sh(size), 10) > grown_mib + 1800);
    assert.deepEqual(await sh('sha256sum < /srv/kept; sha256sum < /srv/more'), `${sum}\n${more}`);
  });
});
