import assert from 'node:assert/strict';
import { test } from 'node:test';
import { MemoryConsumedError, MemoryDamagedError } from '../../disk-format/memory-format.ts';
import { ObjectNotFoundError, ObjectStoreUnavailableError } from '../../object-store/object-store.ts';
import { ControlPlaneUnavailable } from '../../protocol/client.ts';
import type { MemoryRef, Reason } from '../../protocol/types.ts';
import { createLog } from '../../shared/log.ts';
import { NoSpaceError } from '../disk/overlay-files.ts';
import { LeaseOverError } from '../lease/host-lease.ts';
import { StreamRefusedError } from '../qemu/migration.ts';
import { QmpTimeoutError } from '../qemu/qmp-client.ts';
import { GuestMayRunError, type How, MayBeConsumedError, MemoryUnfitError } from './launch-machine.ts';
import { isRetriedStep, NotResumedError, resumeOrBoot } from './resume-machine.ts';

const memory: MemoryRef = {
  ...{ key: 'disks/inst_a/mem/1-00000000', parts: 1, memory_bytes: 1, stored_bytes: 1 },
  ...{ key_id: 'dk_0', salt: '', epoch: 1, generation: 1, frozen: false, authorized_keys: null },
  traits: { qemu: '7.2', hardware: 'h', image_version: 'a', host_cpu: '' },
};

interface Tries {
  /** Of each launch, in turn; the last one launches. */
  readonly failures?: readonly Error[];
  /** Who has consumed the memory. An error: the store does not answer. */
  readonly consumed?: string | Error;
  readonly cold?: Reason;
  readonly ran?: boolean;
  readonly previous_failed?: boolean;
  readonly signal?: AbortSignal;
}

/** Launches; each try is `resume` or `boot`, with `!` where the guest is said to have run. */
async function tried(given: Tries) {
  const { failures = [], consumed, cold, ran = false, previous_failed = false, signal } = given;
  const tries: string[] = [];
  const launched = await resumeOrBoot<{ recovered: Reason | null }>({
    ...{
      memory,
      cold: cold ?? null,
      ran,
      previous_failed,
      consumer: 'it',
      log: createLog('test', 'silent'),
      patience_ms: 2_000,
    },
    signal: signal ?? new AbortController().signal,
    store: {
      get: async () => {
        if (typeof consumed === 'string') return Buffer.from(consumed);
        throw consumed ?? new ObjectNotFoundError('none');
      },
    },
    launchOnce: async (how: How, has_run) => {
      const failure = failures[tries.length];
      tries.push(`${how.memory ? 'resume' : 'boot'}${has_run ? '!' : ''}`);
      if (failure) throw failure;
      return { recovered: how.cold ?? null };
    },
  }).catch((error: unknown) => error);
  return { tries, launched };
}
const reasonOf = (launched: unknown) =>
  typeof launched === 'object' && launched !== null && 'recovered' in launched
    ? launched.recovered
    : undefined;

test('a VM whose memory can be used resumes, also by a start that has consumed it before', async () => {
  for (const consumed of [undefined, 'it']) {
    const { tries, launched } = await tried(consumed === undefined ? {} : { consumed });
    assert.deepEqual([tries, reasonOf(launched)], [['resume'], null]);
  }
});

test('only memory that cannot be used makes the VM boot, and it says why', async () => {
  for (const unusable of [
    new MemoryUnfitError('of another machine'),
    new MemoryDamagedError('damaged'),
    new MemoryConsumedError('consumed'),
    new StreamRefusedError('refused'),
  ]) {
    const { tries, launched } = await tried({ failures: [unusable] });
    assert.deepEqual(tries, ['resume', 'boot']);
    assert.match(JSON.stringify(reasonOf(launched)), /cold_boot.*its memory is lost/);
  }
});

test('memory that another start has consumed is not even loaded', async () => {
  const { tries, launched } = await tried({ consumed: 'another start' });
  assert.deepEqual(tries, ['boot']);
  assert.match(JSON.stringify(reasonOf(launched)), /Another start has consumed the memory/);
});

test('any other failure before the guest runs leaves the memory to the next start', async () => {
  for (const failure of [new NoSpaceError('no room'), new Error('what nobody thought of')]) {
    const { tries, launched } = await tried({ failures: [failure] });
    assert.deepEqual(tries, ['resume']);
    assert(launched instanceof NotResumedError);
  }
  const cold = { code: 'cold_boot', message: 'The memory is damaged.' } as const;
  const { tries, launched } = await tried({ cold, failures: [new NoSpaceError('no room')] });
  assert.deepEqual(tries, ['boot']);
  assert(launched instanceof NotResumedError);
});

test('a store or a QEMU that does not answer is tried again for a while, and then the memory is left to the next start', async () => {
  const passing = [new ObjectStoreUnavailableError('away'), new QmpTimeoutError('silent')];
  assert.deepEqual((await tried({ failures: passing })).tries, ['resume', 'resume', 'resume']);
  const { tries, launched } = await tried({ consumed: new ObjectStoreUnavailableError('away') });
  assert.deepEqual(tries, [], 'without the store nothing is launched');
  assert(launched instanceof NotResumedError);
  assert.match(launched.message, /away/);
});

test('a resume is retried with its memory while the control plane is away or the lease is over', async () => {
  for (const failure of [new LeaseOverError('over'), new ControlPlaneUnavailable('away')]) {
    const { tries, launched } = await tried({ failures: [new QmpTimeoutError('silent'), failure] });
    assert.deepEqual([tries, launched], [['resume', 'resume'], failure]);
  }
});

test('a VM is suspended again only if no guest can have written since the suspend', async () => {
  const failure = new NoSpaceError('no room');
  const may_run = new GuestMayRunError('not confirmed');
  for (const tries of [
    { failures: [may_run, failure] },
    { failures: [new MemoryConsumedError('consumed'), failure] },
    { failures: [failure], consumed: 'another start' },
    { failures: [failure], previous_failed: true },
  ])
    assert.equal((await tried(tries)).launched, failure);
});

test('a start that may have consumed its memory goes on with the same boot', async () => {
  const unsure = new MayBeConsumedError('no answer');
  const { tries, launched } = await tried({ failures: [unsure] });
  assert.deepEqual([tries, launched], [['resume'], unsure]);
  assert.equal(isRetriedStep(unsure), true);
});

test('a guest that may have run is never resumed again: the VM boots with what it wrote, or fails', async () => {
  const may_run = new GuestMayRunError('not confirmed');
  assert.deepEqual((await tried({ failures: [may_run] })).tries, ['resume', 'boot!']);
  const failure = new NoSpaceError('no room');
  const cold = { code: 'cold_boot', message: 'Its guest was lost.' } as const;
  assert.equal((await tried({ cold, ran: true, failures: [failure] })).launched, failure);
  await assert.rejects(async () => {
    const { launched } = await tried({ ran: true });
    throw launched;
  }, /never resumed/);
});
