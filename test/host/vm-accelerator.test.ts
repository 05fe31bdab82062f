/** Which accelerator is believed, tried for real on this host. Needs the guest image (BERTH_TEST_IMAGE_DIR). */
import assert from 'node:assert/strict';
import {
  accessSync,
  constants,
  copyFileSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, describe, test } from 'node:test';
import { AcceleratorError, chooseAccelerator, probeGuest } from '../../src/host/qemu/accelerator.ts';
import { allPids, commandLineOf } from '../../src/host/qemu/qemu-process.ts';

const image_dir = process.env['BERTH_TEST_IMAGE_DIR'];

function probesAlive(folder: string): number[] {
  return allPids().filter((pid) => commandLineOf(pid).some((word) => word.startsWith(folder)));
}

describe('the accelerator', {
  skip: image_dir ? false : 'BERTH_TEST_IMAGE_DIR names no guest image',
  timeout: 300_000,
}, () => {
  const folder = mkdtempSync(join(tmpdir(), 'bacc-'));
  const cache_path = join(folder, 'accelerator.json');
  const image = {
    qemu_binary: 'qemu-system-x86_64',
    kernel_path: join(folder, 'vmlinuz'),
    initrd_path: join(folder, 'initrd.img'),
  };
  // Files of its own: other tests probe the image beside this one.
  before(() => {
    for (const name of ['vmlinuz', 'initrd.img'])
      copyFileSync(join(image_dir ?? '', name), join(folder, name));
  });
  after(() => rmSync(folder, { recursive: true, force: true }));

  test('is KVM only if a test guest boots on it, has a readable reason, and is probed once', async (context) => {
    const first = await chooseAccelerator({ ...image, setting: 'auto', cache_path });
    context.diagnostic(`${first.accel}: ${first.reason}`);
    assert.ok(first.reason.length > 10);
    const noted = JSON.parse(readFileSync(cache_path, 'utf8'));
    writeFileSync(cache_path, JSON.stringify({ ...noted, reason: 'as it was noted' }));
    const second = await chooseAccelerator({ ...image, setting: 'auto', cache_path });
    assert.deepEqual(second, { ...first, reason: 'as it was noted' });
    writeFileSync(cache_path, '{"key":');
    assert.deepEqual(await chooseAccelerator({ ...image, setting: 'auto', cache_path }), first);
    const forced = chooseAccelerator({ ...image, setting: 'kvm' });
    if (first.accel === 'kvm') assert.equal((await forced).accel, 'kvm');
    else await assert.rejects(forced, AcceleratorError);
  });

  test('is TCG without a probe when the setting says so', async () => {
    const choice = await chooseAccelerator({ ...image, qemu_binary: '/nonexistent', setting: 'tcg' });
    assert.equal(choice.accel, 'tcg');
  });

  test('is probed by booting a guest, which is killed at the deadline if it does not boot', async () => {
    assert.equal(await probeGuest('tcg', { ...image, timeout_ms: 60_000 }), null);
    assert.match((await probeGuest('tcg', { ...image, timeout_ms: 100 })) ?? '', /did not boot within 0.1 s/);
    const missing = await probeGuest('tcg', { ...image, kernel_path: join(folder, 'absent') });
    assert.match(missing ?? '', /status 1: .*absent/);
    assert.deepEqual(probesAlive(image.kernel_path), []);
  });
});

/** A QEMU whose guest does not come up the first time. */
const SLOW_ONCE = `#!/bin/sh
[ "$1" = --version ] && exec echo QEMU
echo >> "$0.tries"
[ "$(wc -l < "$0.tries")" -gt 1 ] && echo berth-probe-ok
exec sleep 60
`;

test('stays KVM after one slow test guest, until the next boot of the host', {
  skip: opensKvm() ? false : 'no /dev/kvm',
}, async (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'bacc-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const qemu_binary = join(folder, 'qemu');
  writeFileSync(qemu_binary, SLOW_ONCE, { mode: 0o755 });
  const choice = await chooseAccelerator({
    ...{ qemu_binary, kernel_path: qemu_binary, initrd_path: qemu_binary, timeout_ms: 1_000 },
    ...{ setting: 'auto', cache_path: join(folder, 'accelerator.json') },
  });
  assert.equal(choice.accel, 'kvm');
});

function opensKvm(): boolean {
  try {
    accessSync('/dev/kvm', constants.R_OK | constants.W_OK);
    return true;
  } catch {
    return false;
  }
}
