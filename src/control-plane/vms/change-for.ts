/**
 * Translates a host's report about a VM into what the database records:
 *
 * - `changeFor`: the change of the VM's row: its state, the reason, addresses and times. Pure.
 * - `causeOf`: why the VM started, stopped or was suspended (a request, idleness, a drain …), and who caused it. Pure.
 * - `announceVm`: appends the events of a changed state, such as `vm.started` and `vm.failed`.
 */
import type { Observation, VmReasonCode } from '../../protocol/types.ts';
import { present } from '../../shared/assert.ts';
import { type HostId, isId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { append } from '../events/append.ts';
import type { EventType } from '../events/model.ts';
import { instanceView } from '../instances/model.ts';
import { getInstance } from '../instances/store.ts';
import type { StateObservation, VmState } from './model.ts';
import { reasonOf, type VmChange, type VmReason, type VmRow } from './store.ts';

type MutableChange = { -readonly [K in keyof VmChange]: VmChange[K] };

type Say = (code: VmReasonCode, message: string) => VmReason;

function runningReason(seen: StateObservation & { readonly kind: 'running' }, say: Say): VmReason {
  if (seen.recovered) return say(seen.recovered.code, seen.recovered.message);
  if (seen.access_problem) return say(seen.access_problem.code, seen.access_problem.message);
  return seen.resumed
    ? say('resumed', 'The guest was resumed from where it was suspended.')
    : say('ready', 'The guest answers and accepts SSH.');
}

function suspendedReason(vm: VmRow, say: Say): VmReason {
  return vm.move === null
    ? say('suspended', 'Memory and disk are saved; the next start resumes from here.')
    : { ...reasonOf(vm), message: 'Memory and disk are saved; it resumes on another host.' };
}

/** The actor stays the one who requested the stop. */
function stoppedReason(vm: VmRow, seen: StateObservation, say: Say): VmReason {
  return {
    ...reasonOf(vm),
    ...(vm.reason_code === 'flush_pending' ? say('stopped', 'Stopped; all saved.') : {}),
    ...(seen.kind === 'stopped' && seen.recovered ? say(seen.recovered.code, seen.recovered.message) : {}),
  };
}

export function changeFor(vm: VmRow, next: VmState, seen: StateObservation, host_id: HostId): MutableChange {
  const say: Say = (code, message) => ({ code, message, actor: host_id });
  switch (seen.kind) {
    case 'running':
      return {
        state: next,
        reason: runningReason(seen, say),
        ssh_address: seen.ssh_address,
        applied_keys: seen.applied_keys,
        guest_ran: true,
        ...(vm.started_at === null ? { started_at: 'now' } : {}),
      };
    case 'stalled':
      return { state: next, reason: say(seen.reason.code, seen.reason.message) };
    case 'resumed':
      return { state: next, reason: say('ready', 'The guest runs again, and answers.') };
    case 'rebooting':
      return {
        state: next,
        // A requested restart keeps its reason: it resets the guest too, sometimes more than once.
        reason:
          vm.state === 'restarting' ? reasonOf(vm) : say('guest_reboot', 'The guest rebooted by itself.'),
        resets: vm.resets + 1,
      };
    case 'powered_off':
      return {
        state: next,
        reason: say('guest_poweroff', 'The guest powered off by itself.'),
        desired: 'stopped',
      };
    case 'flush_pending':
      return {
        state: next,
        // The actor stays the one who requested the stop.
        reason: { ...reasonOf(vm), code: 'flush_pending', message: seen.reason.message },
        move: vm.move,
        ssh_address: null,
      };
    case 'suspended':
      return {
        state: next,
        reason: suspendedReason(vm, say),
        move: vm.move,
        ssh_address: null,
        stopped_at: 'now',
        suspended_at: 'now',
      };
    case 'resume_failed':
      return {
        state: next,
        reason: say('resume_failed', seen.reason.message),
        desired: 'suspended',
        ssh_address: null,
        stopped_at: 'now',
        suspended_at: 'now',
        // Nobody asked for its suspend: the task `move-vms` starts it again.
        move: vm.reason_code === 'host_drain' ? 'suspend' : null,
      };
    case 'suspend_failed':
      return {
        state: next,
        reason: say(seen.reason.code, seen.reason.message),
        desired: 'running',
        // The next try does without the memory.
        ...(vm.move === null
          ? {}
          : { move_problem: `its memory could not be saved: ${seen.reason.message}` }),
      };
    case 'stopped':
    case 'deleted':
      return {
        state: next,
        reason: stoppedReason(vm, seen, say),
        ssh_address: null,
        stopped_at: 'now',
        move: vm.move,
      };
    case 'failed':
      return {
        state: next,
        reason: say(seen.reason.code, seen.reason.message),
        ssh_address: null,
        stopped_at: 'now',
        ...(seen.guest_ran ? { guest_ran: true } : {}),
        // A restart by the instance's setting: it was wanted running.
        move: vm.move,
      };
  }
}

/** What a VM's change was made for, as the event of its completion says. */
export const CAUSES = [
  'start_requested',
  'woken',
  'restart_on_failure',
  'restart_requested',
  'guest_reboot',
  'suspend_requested',
  'stop_requested',
  'idle',
  'host_drain',
  'guest_poweroff',
] as const satisfies readonly VmReasonCode[];
export type CauseCode = (typeof CAUSES)[number];

export interface Cause {
  readonly code: CauseCode;
  /** The person or service account that asked for it; else the host or `system`. */
  readonly actor: string;
}

/** @param vm as it was before the change @returns null: unknown */
export function causeOf({
  state,
  reason_code,
  reason_actor,
  move,
}: Pick<VmRow, 'state' | 'reason_code' | 'reason_actor' | 'move'>): Cause | null {
  const code = CAUSES.find((each) => each === reason_code);
  if (reason_actor === null) return null;
  if (code !== undefined) return { code, actor: reason_actor };
  // A stop whose final flush fails says so as its reason, and keeps its actor.
  if (state !== 'stopping') return null;
  return { code: move === null ? stopBy(reason_actor) : 'host_drain', actor: reason_actor };
}

function stopBy(actor: string): CauseCode {
  if (isId('host', actor)) return 'guest_poweroff';
  return actor === 'system' ? 'idle' : 'stop_requested';
}

/** These complete what somebody asked for: their actor is who asked. The others are the host's observations. */
const COMPLETIONS: readonly EventType[] = ['vm.started', 'vm.restarted', 'vm.stopped', 'vm.suspended'];

/**
 * Appends the events of a state change. The row is changed already.
 * @param vm the row before its change @param actor who reported it
 */
export async function announceVm(
  tx: Tx,
  vm: VmRow,
  next: VmState,
  seen: Observation,
  actor: string,
): Promise<void> {
  const types: EventType[] = [];
  if (next === vm.state) return;
  if (next === 'running' && seen.kind === 'running')
    types.push(vm.state === 'restarting' ? 'vm.restarted' : 'vm.started');
  if (next === 'stopped') types.push('vm.stopped');
  if ((seen.kind === 'running' || seen.kind === 'stopped') && seen.recovered) types.push('vm.recovered');
  if (next === 'suspended') types.push('vm.suspended');
  if (next === 'failed') types.push('vm.failed');
  const row = present(await getInstance(tx, vm.instance_id), 'instance of a VM');
  // The deletion has its own event, and it ends the VM: that is not a failure.
  if (row.deleting) return;
  for (const type of types) {
    const completes = COMPLETIONS.includes(type) && seen.kind !== 'resume_failed';
    const cause = completes ? causeOf(vm) : null;
    await append(tx, {
      org_id: row.org_id,
      instance_id: row.id,
      type,
      data: { instance: instanceView(row), ...(cause ? { cause: cause.code } : {}) },
      actor: cause?.actor ?? actor,
    });
  }
}
