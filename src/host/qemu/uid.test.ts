import assert from 'node:assert/strict';
import { chmodSync, chownSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { kvmGroup } from './uid.ts';

test("a VM's user is given the group of /dev/kvm where it needs it, and never root's", {
  skip: process.getuid?.() === 0 ? false : 'not root',
}, (t) => {
  const folder = mkdtempSync(join(tmpdir(), 'bkvm-'));
  t.after(() => rmSync(folder, { recursive: true }));
  const device = join(folder, 'kvm');
  assert.equal(kvmGroup(device), null);
  writeFileSync(device, '');
  const given = ([gid, mode]: readonly [number, number]) => {
    chownSync(device, 0, gid);
    chmodSync(device, mode);
    return kvmGroup(device);
  };
  const cases = [
    [0, 0o666],
    [0, 0o660],
    [104, 0o666],
    [104, 0o600],
    [104, 0o660],
  ] as const;
  assert.deepEqual(cases.map(given), [null, null, null, null, 104]);
});
