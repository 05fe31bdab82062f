import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { deadlineMs, observe, ruleFor, VM_CALLS, VM_STATES, type VmInput, type VmState } from './model.ts';

const INPUTS = [
  'running',
  'stalled',
  'resumed',
  'rebooting',
  'powered_off',
  'flush_pending',
  'suspended',
  'suspend_failed',
  'resume_failed',
  'stopped',
  'failed',
  'deleted',
  'deadline',
] as const satisfies readonly VmInput[];
const state = fc.constantFrom(...VM_STATES);
const settled = (value: VmState) => ['running', 'suspended', 'stopped', 'failed'].includes(value);

test('the table of calls is the one in the interface, word for word', () => {
  const expected: Record<VmState, string> = {
    stopped: 'accepted already VM_NOT_RUNNING VM_NOT_RUNNING VM_NOT_RUNNING serve',
    starting: 'already accepted CONFLICT CONFLICT CONFLICT CONFLICT',
    running: 'already accepted accepted accepted serve serve',
    restarting: 'already accepted CONFLICT CONFLICT CONFLICT serve',
    suspending: 'CONFLICT accepted CONFLICT CONFLICT CONFLICT CONFLICT',
    suspended: 'accepted accepted VM_NOT_RUNNING VM_NOT_RUNNING VM_NOT_RUNNING serve',
    stopping: 'CONFLICT accepted VM_NOT_RUNNING VM_NOT_RUNNING VM_NOT_RUNNING join',
    failed: 'accepted accepted VM_NOT_RUNNING VM_NOT_RUNNING VM_NOT_RUNNING serve',
  };
  for (const from of VM_STATES) {
    assert.equal(VM_CALLS.map((call) => ruleFor(from, call)).join(' '), expected[from], from);
  }
});

test('a stop is never refused, from any state', () => {
  fc.assert(fc.property(state, (from) => ['accepted', 'already'].includes(ruleFor(from, 'stop'))));
});

test('stopped is reached only when the host reports that all writes are durable or lost', () => {
  fc.assert(
    fc.property(state, fc.constantFrom(...INPUTS), (from, input) => {
      if (from !== 'stopped' && observe(from, input) === 'stopped') {
        assert.ok((from === 'stopping' && input === 'stopped') || input === 'deleted');
      }
    }),
  );
});

test('suspended is reached only when the host reports durable memory and disk, or that a start has not used them', () => {
  fc.assert(
    fc.property(state, fc.constantFrom(...INPUTS), (from, input) => {
      if (observe(from, input) !== 'suspended') return;
      assert.equal(input, from === 'starting' ? 'resume_failed' : 'suspended');
      assert(from === 'starting' || from === 'suspending');
    }),
  );
});

test('running is reached only when the host reports that the guest accepts SSH, or continues after a failed suspend', () => {
  fc.assert(
    fc.property(state, fc.constantFrom(...INPUTS), (from, input) => {
      if (from === 'running' || observe(from, input) !== 'running') return;
      assert.equal(input, from === 'suspending' ? 'suspend_failed' : 'running');
    }),
  );
});

test('in any order of inputs, an accepted stop ends only in stopped or failed', () => {
  fc.assert(
    fc.property(fc.array(fc.constantFrom(...INPUTS)), (inputs) => {
      let at: VmState = 'stopping';
      for (const input of inputs) {
        at = observe(at, input) ?? at;
        assert.ok(['stopping', 'stopped', 'failed'].includes(at));
        if (at !== 'stopping') return;
      }
    }),
  );
});

test('every state that does not last has a deadline that ends it, or waits for durability', () => {
  for (const from of VM_STATES.filter((value) => !settled(value) && value !== 'stopping')) {
    assert.ok((deadlineMs(from) ?? 0) > 0, from);
    assert.equal(observe(from, 'deadline'), 'failed');
  }
});

test('a late report changes nothing once the VM is stopped', () => {
  for (const input of INPUTS) assert.equal(observe('stopped', input), null);
});
