import assert from 'node:assert/strict';
import { test } from 'node:test';
import { createLog } from '../../lib/log.ts';
import { LeaseOverError } from '../lease/host-lease.ts';
import { QmpTimeoutError } from '../qmp/qmp-client.ts';
import type { Launch } from './launch-machine.ts';
import { launchOrResume } from './resume-machine.ts';

test('a resume is retried with its memory while QEMU is silent or the lease is over', async () => {
  const failures = [new QmpTimeoutError('silent'), new QmpTimeoutError('silent'), new LeaseOverError('over')];
  let tries = 0;
  const launch = {
    context: {
      paths: { vms: '/nowhere' },
      log: createLog('test', 'silent'),
      vm_gid: null,
      egress: { requireEnforced: () => undefined },
    },
    assignment: { instance_id: 'inst_x', epoch: 1, spec: {}, resume: { key: 'memory' } },
    disk: {
      headFor: async () => {
        throw failures[tries++];
      },
    },
    signal: new AbortController().signal,
  } as unknown as Launch;
  await assert.rejects(launchOrResume(launch, null), LeaseOverError);
  assert.equal(tries, failures.length, 'no cold boot was tried');
});
