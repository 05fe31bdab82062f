import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import {
  interrupts,
  isFinished,
  type MachineView,
  nextStep,
  type Situation,
  STEPS,
  type Step,
} from './next-step.ts';

const situation: fc.Arbitrary<Situation> = fc.record({
  desired: fc.constantFrom('running', 'suspended', 'stopped', 'failed', 'deleted', 'unassigned'),
  machine: fc.constantFrom<MachineView>('none', 'stale', 'booting', 'up', 'off'),
  launched: fc.boolean(),
  unsaved: fc.boolean(),
  saved: fc.boolean(),
  suspend_abandoned: fc.boolean(),
  silent: fc.boolean(),
  ended: fc.boolean(),
  reboots_wanted: fc.nat(3),
  reboots_done: fc.nat(3),
  flush_asked: fc.boolean(),
  flush_due: fc.boolean(),
  growth_wanted: fc.boolean(),
  problem_unreported: fc.boolean(),
});

/** The situation after a step that succeeds. */
function after(now: Situation, step: Step): Situation {
  switch (step) {
    case 'start':
      return { ...now, machine: 'booting', launched: true };
    case 'await_guest':
      return { ...now, machine: 'up' };
    case 'reboot':
      return { ...now, machine: 'booting', reboots_done: now.reboots_wanted };
    case 'flush':
      return { ...now, flush_asked: false, flush_due: false };
    case 'grow_disk':
      return { ...now, growth_wanted: false };
    case 'report_problem':
      return { ...now, problem_unreported: false };
    case 'suspend':
      return { ...now, saved: true };
    case 'cancel_suspend':
      return { ...now, suspend_abandoned: false };
    case 'report_suspended':
      return { ...now, machine: 'none', saved: false, unsaved: false, ended: true };
    case 'power_off':
      return { ...now, machine: 'off' };
    case 'save':
      return { ...now, machine: 'none', unsaved: false };
    case 'save_offline':
      return { ...now, unsaved: false, flush_asked: false };
    case 'end_machine':
      return { ...now, machine: 'none', unsaved: true };
    case 'report_powered_off':
      return { ...now, desired: 'stopped' };
    case 'report_stopped':
    case 'report_died':
      return { ...now, ended: true };
    case 'remove':
      return { ...now, desired: 'unassigned', unsaved: false };
    case 'nothing':
      return now;
  }
}

test('a runner whose steps succeed comes to rest within eight steps', () => {
  fc.assert(
    fc.property(situation, (first) => {
      let now = first;
      for (let taken = 0; nextStep(now) !== 'nothing'; taken++) {
        assert.ok(taken < 8, `still busy: ${nextStep(now)}`);
        now = after(now, nextStep(now));
      }
    }),
  );
});

test('stopped is reported only when no machine has the disk and nothing is unsaved', () => {
  fc.assert(
    fc.property(situation, (now) => {
      if (nextStep(now) === 'report_stopped')
        assert.ok(now.machine === 'none' && !now.unsaved && now.desired === 'stopped');
    }),
  );
});

test('a machine is started only if there is none, and only once per boot', () => {
  fc.assert(
    fc.property(situation, (now) => {
      if (nextStep(now) === 'start')
        assert.ok(now.machine === 'none' && !now.launched && now.desired === 'running');
    }),
  );
});

test('a guest whose memory is durable is never resumed before the memory is reported', () => {
  fc.assert(
    fc.property(situation, (now) => {
      const step = nextStep(now);
      if (now.saved && !now.ended && now.machine !== 'stale') {
        const given_up = ['end_machine', 'remove', 'nothing', 'save_offline'];
        const over = ['failed', 'deleted', 'unassigned'].includes(now.desired);
        assert.ok(over ? given_up.includes(step) : step === 'report_suspended', step);
      }
      if (step === 'report_suspended') assert.ok(now.saved);
      const may_be_up = now.machine === 'up' || (now.machine === 'booting' && now.silent);
      if (step === 'suspend') assert.ok(now.desired === 'suspended' && may_be_up && !now.saved);
      if (['flush', 'reboot', 'suspend', 'await_guest'].includes(step))
        assert.ok(!now.suspend_abandoned, step);
    }),
  );
});

test('an adopted guest that is silent still gets its reboots, flushes and suspends', () => {
  fc.assert(
    fc.property(situation, (any) => {
      const silent = {
        ...any,
        machine: 'booting',
        silent: true,
        saved: false,
        suspend_abandoned: false,
        ended: false,
        problem_unreported: false,
      } as const;
      assert.equal(nextStep({ ...silent, desired: 'suspended' }), 'suspend');
      const wanted = { ...silent, desired: 'running', reboots_done: silent.reboots_wanted } as const;
      assert.equal(nextStep({ ...wanted, flush_asked: true }), 'flush');
      assert.equal(nextStep({ ...wanted, reboots_wanted: wanted.reboots_done + 1 }), 'reboot');
      assert.equal(nextStep({ ...wanted, problem_unreported: true }), 'report_problem');
    }),
  );
});

test('a stop shuts a guest that is up down before its machine is ended', () => {
  fc.assert(
    fc.property(situation, (now) => {
      if (now.desired === 'stopped' && now.machine === 'up' && !now.saved)
        assert.equal(nextStep(now), now.suspend_abandoned ? 'cancel_suspend' : 'power_off');
    }),
  );
});

test('a failed VM’s disk is saved on request, never because its automatic flush is due', () => {
  fc.assert(
    fc.property(situation, (now) => {
      if (now.desired === 'failed')
        assert.equal(nextStep(now) === 'save_offline', now.machine === 'none' && now.flush_asked);
    }),
  );
});

test('files are removed only for a deleted instance without a machine', () => {
  fc.assert(
    fc.property(situation, (now) => {
      if (nextStep(now) === 'remove') assert.ok(now.desired === 'deleted' && now.machine === 'none');
    }),
  );
});

const wanted = (desired: Situation['desired'], vm_id = 'vm_1', force = false) =>
  desired === 'unassigned' ? null : ({ vm_id, desired, force } as Parameters<typeof interrupts>[1]);

test('only a deletion interrupts a save, nothing interrupts an end, and a repeated order interrupts nothing', () => {
  const desired = fc.constantFrom('running', 'suspended', 'stopped', 'failed', 'deleted', 'unassigned');
  fc.assert(
    fc.property(fc.constantFrom(...STEPS), desired, desired, (step, before, after) => {
      const is_interrupted = interrupts(step, wanted(before), wanted(after));
      if (before === after) assert.equal(is_interrupted, false);
      else if (['remove', 'end_machine', 'report_suspended'].includes(step)) assert.ok(!is_interrupted);
      else if (['flush', 'save', 'save_offline'].includes(step))
        assert.equal(is_interrupted, after === 'deleted' || after === 'unassigned');
      else assert.ok(is_interrupted);
    }),
  );
  assert.ok(interrupts('power_off', wanted('stopped'), wanted('stopped', 'vm_1', true)));
  assert.ok(interrupts('start', wanted('running'), wanted('running', 'vm_2')));
});

test('a runner is finished when its boot has ended as wanted, or the instance is elsewhere', () => {
  const stopped = wanted('stopped');
  assert.equal(isFinished(null, null), true);
  for (const [how, is_finished] of [
    ['stopped', true],
    ['failed', false],
    ['suspended', false],
  ] as const)
    assert.equal(isFinished(stopped, { vm_id: 'vm_1', how }), is_finished);
  assert.equal(isFinished(stopped, { vm_id: 'vm_0', how: 'stopped' }), false);
  assert.equal(isFinished(wanted('running'), { vm_id: 'vm_1', how: 'stopped' }), false);
  assert.equal(isFinished(wanted('deleted'), null), false);
});
