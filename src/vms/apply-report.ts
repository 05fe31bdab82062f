import type { VmReasonCode } from '../agent-api/reasons.ts';
import type {
  HostKey,
  KeysReport,
  MemoryRef,
  Observation,
  Reason,
  Report,
  ReportResponse,
} from '../agent-api/types.ts';
import { notify } from '../db/notify.ts';
import { type Db, ping, type Tx, transaction } from '../db/pool.ts';
import { append } from '../events/append.ts';
import type { EventType } from '../events/model.ts';
import { getInstance, type InstanceRow, lockInstance, setHostKeys } from '../instances/store.ts';
import { instanceView } from '../instances/view.ts';
import { present } from '../lib/assert.ts';
import { invalid } from '../lib/errors.ts';
import type { HostId } from '../lib/ids.ts';
import type { DeadlineMonitor } from './deadline-monitor.ts';
import { answerFlushes, failFlushes, tellOfFailure } from './flushes.ts';
import { isMemoryKey, orphanMemory, recordMemory } from './memory-store.ts';
import { observe, TROUBLE_CODES, type VmState } from './model.ts';
import {
  findVm,
  listLively,
  listOverdue,
  markReleased,
  noteAllDurable,
  reasonOf,
  setAppliedKeys,
  updateVm,
  type VmChange,
  type VmReason,
  type VmRow,
} from './store.ts';

/** Applies what a host observed of a VM; `fenced` when the VM is not (or no longer) that host's. */
export async function applyReport(
  db: Db,
  host_id: HostId,
  report: Report,
): Promise<ReportResponse['outcome']> {
  return transaction(db, async (tx) => {
    const found = await findVm(tx, report.vm_id);
    if (!found || found.host_id !== host_id || found.epoch !== report.epoch) return 'fenced';
    await lockInstance(tx, found.instance_id);
    const vm = present(await findVm(tx, report.vm_id), 'vm under lock');
    const instance = present(await getInstance(tx, vm.instance_id), 'instance under lock');
    if (report.observed.kind === 'deleted') return instance.deleting ? release(tx, vm, host_id) : 'fenced';
    if (instance.vm_id !== vm.id) return 'fenced';
    if (report.observed.kind === 'suspended') {
      const { memory } = report.observed;
      await checkMemory(tx, vm, memory);
      if (RUNS_ON.includes(vm.state) || memory.generation !== instance.generation) return 'unwanted';
      await recordMemory(tx, vm, memory, vm.state === 'suspending');
    }
    await move(tx, vm, instance, report.observed, host_id);
    return 'accepted';
  });
}

/** A memory lies where its placement writes, under the key that no fork of the instance has. @throws AppError INVALID_REQUEST */
async function checkMemory(tx: Tx, { instance_id, epoch }: VmRow, memory: MemoryRef): Promise<void> {
  const is_its_own = memory.epoch === epoch && memory.key.startsWith(`disks/${instance_id}/mem/${epoch}-`);
  if (!is_its_own) throw invalid('observed.memory.key', 'is no memory of this instance and placement');
  if (!(await isMemoryKey(tx, instance_id, memory.key_id)))
    throw invalid('observed.memory.key_id', 'is not the key for memory of this instance');
}

/** Where the guest is to go on: its host must not end it, whatever it made durable. */
const RUNS_ON: readonly VmState[] = ['starting', 'running', 'restarting'];

/** The guest lets in these keys and nobody else is connected: a revocation that waited for it is confirmed. */
export async function applyKeys(db: Db, host_id: HostId, report: KeysReport): Promise<'accepted' | 'fenced'> {
  return transaction(db, async (tx) => {
    const vm = { id: report.vm_id, host_id, epoch: report.epoch };
    if (!(await setAppliedKeys(tx, vm, report.applied_keys))) return 'fenced';
    await notify(tx, 'routes');
    return 'accepted';
  });
}

async function release(tx: Tx, vm: VmRow, host_id: HostId): Promise<'accepted'> {
  await markReleased(tx, vm.instance_id, host_id);
  await failFlushes(tx, vm.id, 'The instance was deleted.');
  await notify(tx, 'deleting');
  return 'accepted';
}

async function move(
  tx: Tx,
  vm: VmRow,
  instance: InstanceRow,
  seen: Observation,
  host_id: HostId,
): Promise<void> {
  const next = observe(vm.state, seen.kind);
  if (next === null) return;
  // An answer to an older restart: another one was asked for meanwhile.
  if (seen.kind === 'running' && seen.reboots < vm.reboots) return;
  if (next === vm.state && next === 'stopping' && seen.kind === 'powered_off') return;
  const adopted = seen.kind === 'running' && vm.state === 'running';
  const change = changeFor(vm, next, seen, host_id);
  const another = showsAnother(vm, instance, seen);
  if (another && change.reason?.code === 'ready')
    change.reason = { ...change.reason, message: READY_WITH_ANOTHER_KEY };
  // Unless it was in trouble: if it still is, that is said anew.
  if (adopted && !TROUBLE_CODES.includes(vm.reason_code ?? '')) change.reason = reasonOf(vm);
  await updateVm(tx, vm, change);
  if (seen.kind === 'running') await orphanMemory(tx, vm.id);
  if (seen.kind === 'running' && (instance.host_keys === null || another))
    await setHostKeys(tx, instance.id, [...seen.host_keys]);
  // A receipt would say that what is lost is durable.
  const lost =
    seen.kind === 'stopped' && seen.recovered?.code === 'recovered' ? seen.recovered.message : null;
  if (lost !== null) await failFlushes(tx, vm.id, lost);
  else if (next === 'stopped' || next === 'suspended') await answerFlushes(tx, vm.id, instance);
  if (next === 'stopped' || next === 'suspended') await noteAllDurable(tx, vm.instance_id);
  if (next === 'failed') await failFlushes(tx, vm.id, 'The VM is failed.');
  await announce(tx, vm, next, seen, host_id);
  // Said again at each try; told once.
  if (seen.kind === 'flush_pending' && vm.reason_code !== 'flush_pending') {
    await tellOfFailure(tx, instance.id, 'final', seen.reason, host_id);
  }
  await notify(tx, 'instance', instance.id);
  await notify(tx, 'routes');
  if (change.desired !== undefined) await notify(tx, 'host', host_id);
}

const READY_WITH_ANOTHER_KEY =
  'The guest answers and accepts SSH. Its host key is another than before: somebody in it has changed or removed the old one.';

/**
 * Berth never changes it. Whoever is root in the guest may, and nobody could log in any more who goes by what we say. A guest
 * that has not booted since it was last asked may have another in its file than its sshd shows.
 */
function showsAnother(vm: VmRow, { host_keys }: InstanceRow, seen: Observation): boolean {
  if (seen.kind !== 'running' || seen.resumed || vm.state === 'running') return false;
  const keysOf = (list: readonly HostKey[]) => list.map((key) => key.public_key).join('\n');
  return host_keys !== null && seen.host_keys.length > 0 && keysOf(host_keys) !== keysOf(seen.host_keys);
}

type MutableChange = { -readonly [K in keyof VmChange]: VmChange[K] };

function changeFor(vm: VmRow, next: VmState, seen: Observation, host_id: HostId): MutableChange {
  const say = (code: VmReasonCode, message: string): VmReason => ({ code, message, actor: host_id });
  switch (seen.kind) {
    case 'running':
      return {
        state: next,
        reason: seen.recovered
          ? say(seen.recovered.code, seen.recovered.message)
          : seen.resumed
            ? say('resumed', 'The guest goes on from where it was suspended.')
            : say('ready', 'The guest answers and accepts SSH.'),
        ssh_address: seen.ssh_address,
        applied_keys: seen.applied_keys,
        ...(vm.started_at === null ? { started_at: new Date() } : {}),
      };
    case 'stalled':
      return { state: next, reason: say(seen.reason.code, seen.reason.message) };
    case 'resumed':
      return { state: next, reason: say('ready', 'The guest goes on, and answers.') };
    case 'rebooting':
      return {
        state: next,
        // Why it restarts stays the reason: a restart resets the guest too, maybe more than once.
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
      return { state: next, reason: say('flush_pending', seen.reason.message), ssh_address: null };
    case 'suspended':
      return {
        state: next,
        reason: say('suspended', 'Memory and disk are durable; a start goes on from here.'),
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
        // Who asked for the stop stays known.
        reason: {
          ...reasonOf(vm),
          ...(vm.reason_code === 'flush_pending' ? say('stopped', 'Stopped; all is durable.') : {}),
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

async function announce(tx: Tx, vm: VmRow, next: VmState, seen: Observation, actor: string): Promise<void> {
  const types: EventType[] = [];
  if (next === vm.state) return;
  if (next === 'running' && seen.kind === 'running')
    types.push(vm.state === 'restarting' ? 'vm.restarted' : 'vm.started');
  if (next === 'stopped') types.push('vm.stopped');
  if ((seen.kind === 'running' || seen.kind === 'stopped') && seen.recovered) types.push('vm.recovered');
  if (next === 'suspended') types.push('vm.suspended');
  if (next === 'failed') types.push('vm.failed');
  const row = present(await getInstance(tx, vm.instance_id), 'instance of a VM');
  // Its deletion has been told, and ends whatever runs: that is no failure for anybody to look into.
  if (row.deleting) return;
  for (const type of types) {
    await append(tx, {
      org_id: row.org_id,
      instance_id: row.id,
      type,
      data: { instance: instanceView(row) },
      actor,
    });
  }
}

const TIMEOUTS: Partial<Record<VmState, VmReasonCode>> = {
  starting: 'starting_timeout',
  restarting: 'restarting_timeout',
  suspending: 'suspending_timeout',
};

/** {@link applyDeadlines} of a task that runs every few seconds: once the hosts could be heard since it was away. */
export async function enforceDeadlines(db: Db, watch: DeadlineMonitor, now_ms = Date.now()): Promise<void> {
  try {
    await ping(db);
  } catch (error) {
    watch.forget();
    throw error;
  }
  if (watch.look(now_ms)) await applyDeadlines(db);
}

/** Moves every VM on whose transient state has outlasted its deadline. Returns how many. */
export async function applyDeadlines(db: Db): Promise<number> {
  const overdue = await listOverdue(db);
  for (const { id, instance_id } of overdue) {
    await transaction(db, async (tx) => {
      await lockInstance(tx, instance_id);
      const vm = await findVm(tx, id);
      if (!vm || vm.deadline_at === null || vm.deadline_at.getTime() > Date.now()) return;
      const code = TIMEOUTS[vm.state];
      if (code) await failVm(tx, vm, { code, message: `The VM was ${vm.state} for too long.` });
    });
  }
  return overdue.length;
}

/** The machines that these VMs ran on are gone, and with them what was not durable. Returns how many it concerns. */
export async function failLost(db: Db, message: string, actor: string): Promise<number> {
  const lost = await listLively(db);
  for (const { id, instance_id } of lost) {
    await transaction(db, async (tx) => {
      await lockInstance(tx, instance_id);
      const vm = await findVm(tx, id);
      if (vm && observe(vm.state, 'failed'))
        await endWithoutHost(tx, vm, { code: 'host_lost', message }, actor);
    });
  }
  return lost.length;
}

/**
 * Ends a VM whose host is gone, as `failed`; but as `stopped` one whose stop was asked for when it was suspended: all that
 * its guest wrote is durable. The instance is locked, and this is its newest boot.
 */
export async function endWithoutHost(tx: Tx, vm: VmRow, reason: Reason, actor = 'system'): Promise<void> {
  if (vm.suspended_at === null) return failVm(tx, vm, reason, actor);
  const stopped = { kind: 'stopped' } as const;
  await updateVm(tx, vm, changeFor(vm, 'stopped', stopped, vm.host_id));
  await announce(tx, vm, 'stopped', stopped, actor);
  await notify(tx, 'instance', vm.instance_id);
}

/** Ends a VM as `failed` without its host. The instance is locked, and this is its newest boot. */
export async function failVm(tx: Tx, vm: VmRow, { code, message }: Reason, actor = 'system'): Promise<void> {
  const reason = { code, message, actor };
  await updateVm(tx, vm, { state: 'failed', reason, ssh_address: null, stopped_at: new Date() });
  await failFlushes(tx, vm.id, message);
  await announce(tx, vm, 'failed', { kind: 'failed', reason }, actor);
  await notify(tx, 'instance', vm.instance_id);
  await notify(tx, 'routes');
  await notify(tx, 'host', vm.host_id);
}
