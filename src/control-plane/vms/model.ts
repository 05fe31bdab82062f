/**
 * Defines the states of a VM and their transitions. Pure. Calls are in capitals, reports of hosts in lower case.
 *
 *   stopped, suspended, failed         ── START ──▶ starting ── running ──▶ running
 *   starting, from saved memory        ── resume_failed ──▶ suspended
 *   running                            ── RESTART, rebooting ──▶ restarting ── running ──▶ running
 *   running                            ── SUSPEND ──▶ suspending ── suspended ──▶ suspended, suspend_failed ──▶ running
 *   any but stopped                    ── STOP ──▶ stopping ── stopped ──▶ stopped
 *   any but stopped, suspended, failed ── powered_off ──▶ stopping
 *   any but stopped, suspended         ── failed ──▶ failed; starting, restarting, suspending also at a deadline
 *
 * A start makes a new boot (a new row and epoch). Other changes update the row, guarded by its version. `running`: the
 * guest accepts SSH, or the reason says why not. `stopped`: the guest's writes are saved, or reported lost.
 */
import type { Observation } from '../../protocol/types.ts';
import type { Database } from '../db/tables.ts';

export const VM_STATES = [
  'starting',
  'running',
  'restarting',
  'suspending',
  'suspended',
  'stopping',
  'stopped',
  'failed',
] as const satisfies readonly Database['vms']['state'][];
export type VmState = (typeof VM_STATES)[number];

export const VM_CALLS = ['start', 'stop', 'restart', 'suspend', 'exec', 'flush'] as const;
export type VmCall = (typeof VM_CALLS)[number];

/**
 * What a call does in a state. `accepted` moves to the next state (202), `already` changes nothing (200),
 * `serve` is done in the state as it is (200), `join` waits for the final flush; the others are 409.
 */
export type CallRule = 'accepted' | 'already' | 'serve' | 'join' | 'CONFLICT' | 'VM_NOT_RUNNING';

const NOT_RUNNING = { restart: 'VM_NOT_RUNNING', suspend: 'VM_NOT_RUNNING', exec: 'VM_NOT_RUNNING' } as const;
const BUSY = { restart: 'CONFLICT', suspend: 'CONFLICT', exec: 'CONFLICT' } as const;

const RULES: Record<VmState, Record<VmCall, CallRule>> = {
  stopped: { start: 'accepted', stop: 'already', ...NOT_RUNNING, flush: 'serve' },
  starting: { start: 'already', stop: 'accepted', ...BUSY, flush: 'CONFLICT' },
  running: {
    start: 'already',
    stop: 'accepted',
    restart: 'accepted',
    suspend: 'accepted',
    exec: 'serve',
    flush: 'serve',
  },
  restarting: { start: 'already', stop: 'accepted', ...BUSY, flush: 'serve' },
  suspending: { start: 'CONFLICT', stop: 'accepted', ...BUSY, flush: 'CONFLICT' },
  suspended: { start: 'accepted', stop: 'accepted', ...NOT_RUNNING, flush: 'serve' },
  stopping: { start: 'CONFLICT', stop: 'accepted', ...NOT_RUNNING, flush: 'join' },
  failed: { start: 'accepted', stop: 'accepted', ...NOT_RUNNING, flush: 'serve' },
};

export function ruleFor(state: VmState, call: VmCall): CallRule {
  return RULES[state][call];
}

/** Of the VM's state: a disk that has grown changes none. */
export type StateObservation = Exclude<Observation, { kind: 'disk_grown' }>;

/** An observation of the host, or the state's deadline. */
export type VmInput = StateObservation['kind'] | 'deadline';

/** The state after an input; null when the input is ignored in that state. */
export function observe(state: VmState, input: VmInput): VmState | null {
  if (state === 'stopped' || state === 'suspended') return null;
  switch (input) {
    case 'running':
      return state === 'starting' || state === 'restarting' || state === 'running' ? 'running' : null;
    case 'stalled':
    case 'resumed':
      return state === 'running' ? 'running' : null;
    case 'rebooting':
      return state === 'running' || state === 'restarting' ? 'restarting' : null;
    case 'powered_off':
      return state === 'failed' ? null : 'stopping';
    case 'flush_pending':
      return state === 'stopping' ? 'stopping' : null;
    case 'suspended':
      return state === 'suspending' ? 'suspended' : null;
    case 'resume_failed':
      return state === 'starting' ? 'suspended' : null;
    case 'suspend_failed':
      return state === 'suspending' ? 'running' : null;
    case 'stopped':
      return state === 'stopping' ? 'stopped' : null;
    case 'failed':
      return 'failed';
    case 'deadline':
      // A stop has no deadline: it retries until the guest's writes are saved.
      return state === 'starting' || state === 'restarting' || state === 'suspending' ? 'failed' : null;
    case 'deleted':
      return 'stopped';
  }
}

/** How long a state may last before its `deadline`; null: without limit. */
export function deadlineMs(state: VmState): number | null {
  switch (state) {
    case 'starting':
      return 600_000;
    case 'restarting':
      return 300_000;
    case 'suspending':
      // The host gives up earlier and lets the guest continue; a large memory takes long.
      return 3_600_000;
    default:
      return null;
  }
}

/** Of a running VM whose guest agent answers: nobody can log in. */
export const ACCESS_PROBLEMS: readonly string[] = ['ssh_unavailable', 'network_unavailable'];

/** Trouble of a running VM: its guest waits for the host's disk, the guest agent is silent, or nobody can log in. */
export const TROUBLE_CODES: readonly string[] = [
  ...['disk_full', 'disk_error', 'guest_agent_silent'],
  ...ACCESS_PROBLEMS,
];

/** Whether it is suspended because it could not be resumed: its last start ran no guest. */
export function resumeFailed(vm: {
  readonly state: VmState | null;
  readonly started_at: Date | null;
}): boolean {
  return vm.state === 'suspended' && vm.started_at === null;
}

/** Whether its host is being drained, and it continues on another by itself: connections wait for it. */
export function isMoving(vm: {
  readonly state: VmState | null;
  readonly move: string | null;
  readonly reason_code: string | null;
}): boolean {
  if (vm.state === 'failed') return false;
  return vm.move !== null || (vm.state === 'starting' && vm.reason_code === 'host_drain');
}

/** For the message of a 409: what to do. */
export function remedy(state: VmState, call: VmCall): string {
  if (state === 'stopping')
    return `The VM is stopping; wait until it is stopped (GET …/vm?wait=stopped), then ${call === 'start' ? 'start it' : 'start it and try again'}.`;
  if (state === 'suspending')
    return `The VM is suspending; wait until it is suspended (GET …/vm?wait=suspended), then ${call === 'start' ? 'start it' : 'start it and try again'}.`;
  if (state === 'stopped' || state === 'suspended') return `The VM is ${state}. Start it first (POST …/vm).`;
  if (state === 'failed')
    return 'The VM has failed. Start it again (POST …/vm), or stop it to save its disk (DELETE …/vm).';
  return `The VM is ${state}; wait until it is running (GET …/vm?wait=running), then try again.`;
}
