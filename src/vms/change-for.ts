/** The row change that an observation causes. Pure. */
import type { VmReasonCode } from '../agent-api/reasons.ts';
import type { HostId } from '../lib/ids.ts';
import type { StateObservation, VmState } from './model.ts';
import { reasonOf, type VmChange, type VmReason, type VmRow } from './store.ts';

type MutableChange = { -readonly [K in keyof VmChange]: VmChange[K] };

export function changeFor(vm: VmRow, next: VmState, seen: StateObservation, host_id: HostId): MutableChange {
  const say = (code: VmReasonCode, message: string): VmReason => ({ code, message, actor: host_id });
  switch (seen.kind) {
    case 'running':
      return {
        state: next,
        reason: seen.recovered
          ? say(seen.recovered.code, seen.recovered.message)
          : seen.resumed
            ? say('resumed', 'The guest was resumed from where it was suspended.')
            : say('ready', 'The guest answers and accepts SSH.'),
        ssh_address: seen.ssh_address,
        applied_keys: seen.applied_keys,
        ...(vm.started_at === null ? { started_at: new Date() } : {}),
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
        ssh_address: null,
      };
    case 'suspended':
      return {
        state: next,
        reason: say('suspended', 'Memory and disk are saved; the next start resumes from here.'),
        ssh_address: null,
        stopped_at: new Date(),
        suspended_at: new Date(),
      };
    case 'suspend_failed':
      return { state: next, reason: say(seen.reason.code, seen.reason.message), desired: 'running' };
    case 'stopped':
    case 'deleted':
      return {
        state: next,
        // The actor stays the one who requested the stop.
        reason: {
          ...reasonOf(vm),
          ...(vm.reason_code === 'flush_pending' ? say('stopped', 'Stopped; all saved.') : {}),
          ...(seen.kind === 'stopped' && seen.recovered
            ? say(seen.recovered.code, seen.recovered.message)
            : {}),
        },
        ssh_address: null,
        stopped_at: new Date(),
      };
    case 'failed':
      return {
        state: next,
        reason: say(seen.reason.code, seen.reason.message),
        ssh_address: null,
        stopped_at: new Date(),
      };
  }
}
