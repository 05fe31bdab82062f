/**
 * Decides for the reconciler: which step comes next between the wanted and the actual state, which changes interrupt a
 * step, and when nothing is left to do. Pure. Each step brings the VM nearer to the wanted state. The reconciler takes
 * the step, observes, and asks again.
 */
import type { Assignment } from '../../protocol/types.ts';

/** The machine (a QEMU process) of an instance, as the reconciler sees it. */
export type MachineView =
  /** No process. */
  | 'none'
  /** A process of an earlier boot. */
  | 'stale'
  /** The guest boots or reboots. */
  | 'booting'
  /** The guest answers and accepts SSH. */
  | 'up'
  /** The guest has powered off. The process keeps its disk open; nothing writes to it. */
  | 'off';

export interface Situation {
  /** `unassigned`: the instance is no longer assigned to this host. */
  readonly desired: Assignment['desired'] | 'unassigned';
  readonly machine: MachineView;
  /** A machine of this boot was launched: by this agent, by an earlier one, or by another machine whose place this host took. */
  readonly launched: boolean;
  /** The overlay holds writes beyond the head, and no machine has it open. */
  readonly unsaved: boolean;
  /** Memory and disk of this boot are durable, and its guest is paused. */
  readonly saved: boolean;
  /** The guest is paused for a suspend that was given up. */
  readonly suspend_abandoned: boolean;
  /** An adopted machine that may serve users, whose guest does not answer: steps are taken with it all the same. */
  readonly silent: boolean;
  /** The end of this boot was reported and accepted. */
  readonly ended: boolean;
  readonly reboots_wanted: number;
  readonly reboots_done: number;
  /** A caller waits for a flush. */
  readonly flush_asked: boolean;
  /** The automatic flush is due. It may stay due after the guest has ended. */
  readonly flush_due: boolean;
  /** The running guest's disk was increased, and this boot of it was not told. */
  readonly growth_wanted: boolean;
  /** The guest's problem (no disk space, silent agent) began or ended, and that was not reported. */
  readonly problem_unreported: boolean;
}

export const STEPS = [
  'start',
  'await_guest',
  'reboot',
  'flush',
  'grow_disk',
  'suspend',
  'cancel_suspend',
  'power_off',
  'save',
  'save_offline',
  'end_machine',
  'remove',
  'report_problem',
  'report_powered_off',
  'report_suspended',
  'report_stopped',
  'report_died',
  'nothing',
] as const;
export type Step = (typeof STEPS)[number];

export function nextStep(now: Situation): Step {
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
  if (now.saved && now.machine !== 'stale') return 'report_suspended';
  switch (now.machine) {
    case 'stale':
      return 'end_machine';
    case 'none':
      return now.launched ? 'report_died' : 'start';
    case 'booting':
      if (now.suspend_abandoned) return 'cancel_suspend';
      if (now.silent && now.problem_unreported) return 'report_problem';
      if (now.silent && now.reboots_wanted > now.reboots_done) return 'reboot';
      return now.silent && (now.flush_asked || now.flush_due) ? 'flush' : 'await_guest';
    case 'off':
      return 'report_powered_off';
    case 'up':
      if (now.suspend_abandoned) return 'cancel_suspend';
      if (now.problem_unreported) return 'report_problem';
      if (now.reboots_wanted > now.reboots_done) return 'reboot';
      // Before a flush, which may be long: it is short, and not tried again.
      if (now.growth_wanted) return 'grow_disk';
      return now.flush_asked || now.flush_due ? 'flush' : 'nothing';
  }
}

function decideSuspended(now: Situation): Step {
  if (now.ended) return 'nothing';
  if (now.saved && now.machine !== 'stale') return 'report_suspended';
  switch (now.machine) {
    case 'stale':
      return 'end_machine';
    case 'none':
      return 'report_died';
    case 'booting':
      if (now.suspend_abandoned) return 'cancel_suspend';
      return now.silent ? 'suspend' : 'await_guest';
    case 'off':
      return 'report_powered_off';
    case 'up':
      return now.suspend_abandoned ? 'cancel_suspend' : 'suspend';
  }
}

function decideStopped(now: Situation): Step {
  // Durable memory is reported in any case: the answer says whether the machine may end.
  if (now.saved && !now.ended && now.machine !== 'stale') return 'report_suspended';
  switch (now.machine) {
    case 'stale':
      return 'end_machine';
    case 'booting':
    case 'up':
      return now.suspend_abandoned ? 'cancel_suspend' : 'power_off';
    case 'off':
      return 'save';
    case 'none':
      if (now.ended) return 'nothing';
      return now.unsaved ? 'save_offline' : 'report_stopped';
  }
}

/** How the end of a boot was reported. A `failed` VM can still be saved by a stop; a `suspended` one can still be stopped. */
export interface BootEnding {
  readonly vm_id: string;
  readonly how: 'stopped' | 'suspended' | 'failed';
}

export function hasEnded(
  ended: BootEnding | null,
  { vm_id, desired }: Pick<Assignment, 'vm_id' | 'desired'>,
): boolean {
  if (ended?.vm_id !== vm_id) return false;
  return desired !== 'stopped' || ended.how === 'stopped';
}

/** Without a machine, nothing is left to do on this host. */
export function isFinished(
  assignment: Pick<Assignment, 'vm_id' | 'desired'> | null,
  ended: BootEnding | null,
): boolean {
  if (assignment === null) return true;
  return ['stopped', 'suspended', 'deleted'].includes(assignment.desired) && hasEnded(ended, assignment);
}

type Wanted = Pick<Assignment, 'vm_id' | 'desired' | 'force'>;

/** Whether a new assignment interrupts the step under way. A save has callers that wait: only a deletion interrupts it. */
export function interrupts(step: Step, before: Wanted | null, after: Wanted | null): boolean {
  const is_same =
    after?.vm_id === before?.vm_id && after?.desired === before?.desired && after?.force === before?.force;
  if (is_same) return false;
  switch (step) {
    case 'flush':
    case 'save':
    case 'save_offline':
      return after === null || after.desired === 'deleted';
    case 'remove':
    case 'end_machine':
    case 'report_suspended':
      return false;
    default:
      return true;
  }
}
