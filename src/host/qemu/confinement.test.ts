import assert from 'node:assert/strict';
import { chmodSync, chownSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { test } from 'node:test';
import { kvmGroup, parseCgroupMounts, vmLimits } from './confinement.ts';

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

test('version 1 controllers are found where they are mounted, joined or alone', () => {
  const mountinfo = [
    '30 23 0:26 / /sys/fs/cgroup/cpu,cpuacct rw shared:9 - cgroup cgroup rw,cpu,cpuacct',
    '31 23 0:27 / /sys/fs/cgroup/mem\\040ory rw - cgroup cgroup rw,memory',
    '32 23 0:28 / /sys/fs/cgroup/pids rw - cgroup cgroup rw,pids',
    '34 23 0:30 / /sys/fs/cgroup/blkio rw - cgroup cgroup rw,blkio',
    '33 23 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw',
  ].join('\n');
  assert.deepEqual(parseCgroupMounts(mountinfo), {
    version: 1,
    roots: {
      cpu: '/sys/fs/cgroup/cpu,cpuacct',
      memory: '/sys/fs/cgroup/mem ory',
      pids: '/sys/fs/cgroup/pids',
      blkio: '/sys/fs/cgroup/blkio',
    },
  });
});

test('version 2 is taken where no version 1 controller is mounted, and a host without either has none', () => {
  const unified = '29 23 0:25 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate';
  assert.deepEqual(parseCgroupMounts(unified), { version: 2, root: '/sys/fs/cgroup' });
  assert.equal(parseCgroupMounts('21 1 0:20 / /proc rw - proc proc rw\n'), null);
});

test('limits leave room for what QEMU needs beside the guest', () => {
  const tcg = vmLimits({ cpus: 2, memory_mib: 512, accel: 'tcg' });
  assert.equal(tcg.cpu_quota_us / tcg.cpu_period_us, 2.5);
  assert.ok(tcg.memory_bytes > vmLimits({ cpus: 2, memory_mib: 512, accel: 'kvm' }).memory_bytes);
  const beside_mib = tcg.memory_bytes / 2 ** 20 - 512;
  assert.ok(beside_mib >= 768, 'also for the cache of a disk that is in use, which is counted');
});
