/**
 * What a runner does next, from what is wanted and what is there: one pure function. Each step moves the VM a
 * little nearer to what is wanted; the runner carries it out, looks again, and decides anew.
 */
import type { Assignment } from '../../agent-api/types.ts';

/** The machine (a QEMU process) of an instance, as the runner sees it. */
export type MachineView =
  /** No process. */
  | 'none'
  /** A process of an earlier boot. */
  | 'stale'
  /** The guest is booting or rebooting. */
  | 'booting'
  /** The guest answers and accepts SSH. */
  | 'up'
  /** The guest has powered off; the process holds its disk, quiet. */
  | 'off';

export interface Situation {
  /** `unassigned`: the control plane says nothing of the instance any more. */
  readonly desired: Assignment['desired'] | 'unassigned';
  readonly machine: MachineView;
  /** A machine of this boot was launched, now or before. */
  readonly launched: boolean;
  /** The overlay here holds writes beyond the head, and no machine has it open. */
  readonly unsaved: boolean;
  /** Memory and disk of this boot are durable, and its guest stands still. */
  readonly saved: boolean;
  /** Its guest stands still for a suspend that was given up. */
  readonly standing: boolean;
  /** An earlier agent's, which may have been up for long, and was silent for a while: what is asked of it is done all the same. */
  readonly silent: boolean;
  /** The end of this boot was reported and accepted. */
  readonly ended: boolean;
  readonly reboots_wanted: number;
  readonly reboots_done: number;
  /** Callers wait for a flush. */
  readonly flush_asked: boolean;
  /** The automatic flush of a running guest is due; it may still be so when that guest has ended. */
  readonly flush_due: boolean;
  /** The guest began to wait for this host's disk, or its agent to be silent, or that is over, and it was not said. */
  readonly trouble_unsaid: boolean;
}

export const STEPS = [
  'start',
  'await_guest',
  'reboot',
  'flush',
  'suspend',
  'run_on',
  'power_off',
  'save',
  'save_offline',
  'end_machine',
  'remove',
  'say_trouble',
  'say_powered_off',
  'say_suspended',
  'say_stopped',
  'say_died',
  'nothing',
] as const;
export type Step = (typeof STEPS)[number];

export function decide(now: Situation): Step {
  const alive = now.machine !== 'none';
  switch (now.desired) {
    case 'deleted':
      return alive ? 'end_machine' : 'remove';
    case 'unassigned':
      return alive ? 'end_machine' : 'nothing';
    case 'failed':
      if (alive) return 'end_machine';
      return now.flush_asked ? 'save_offline' : 'nothing';
    case 'running':
      return decideRunning(now);
    case 'suspended':
      return decideSuspended(now);
    case 'stopped':
      return decideStopped(now);
  }
}

function decideRunning(now: Situation): Step {
  if (now.ended) return 'nothing';
  if (now.saved && now.machine !== 'stale') return 'say_suspended';
  switch (now.machine) {
    case 'stale':
      return 'end_machine';
    case 'none':
      return now.launched ? 'say_died' : 'start';
    case 'booting':
      if (now.standing) return 'run_on';
      if (now.silent && now.trouble_unsaid) return 'say_trouble';
      if (now.silent && now.reboots_wanted > now.reboots_done) return 'reboot';
      return now.silent && (now.flush_asked || now.flush_due) ? 'flush' : 'await_guest';
    case 'off':
      return 'say_powered_off';
    case 'up':
      if (now.standing) return 'run_on';
      if (now.trouble_unsaid) return 'say_trouble';
      if (now.reboots_wanted > now.reboots_done) return 'reboot';
      return now.flush_asked || now.flush_due ? 'flush' : 'nothing';
  }
}

function decideSuspended(now: Situation): Step {
  if (now.ended) return 'nothing';
  if (now.saved && now.machine !== 'stale') return 'say_suspended';
  switch (now.machine) {
    case 'stale':
      return 'end_machine';
    case 'none':
      return 'say_died';
    case 'booting':
      if (now.standing) return 'run_on';
      return now.silent ? 'suspend' : 'await_guest';
    case 'off':
      return 'say_powered_off';
    case 'up':
      return now.standing ? 'run_on' : 'suspend';
  }
}

function decideStopped(now: Situation): Step {
  // The durable memory is said, wanted or not: who answers knows whether its machine may end.
  if (now.saved && !now.ended && now.machine !== 'stale') return 'say_suspended';
  switch (now.machine) {
    case 'stale':
      return 'end_machine';
    case 'booting':
    case 'up':
      return now.standing ? 'run_on' : 'power_off';
    case 'off':
      return 'save';
    case 'none':
      if (now.ended) return 'nothing';
      return now.unsaved ? 'save_offline' : 'say_stopped';
  }
}

/** Whether a step that is under way is given up for what is wanted now; undefined: nothing. */
export function isInterruptible(step: Step, desired: Assignment['desired'] | undefined): boolean {
  if (step === 'flush' || step === 'save' || step === 'save_offline') {
    return desired === undefined || desired === 'deleted';
  }
  return step !== 'remove' && step !== 'end_machine' && step !== 'say_suspended';
}
