/**
 * Applies what a host's agent reports: the states of its VMs, the SSH keys that guests accept, the keys that logged in,
 * and VMs that the database does not know. A report for a VM of another host, or of an older boot or epoch, changes
 * nothing and is answered with `fenced`.
 */
import type {
  HostKey,
  KeysReport,
  LoginsReport,
  MemoryRef,
  Report,
  ReportResponse,
  UnknownVmReport,
} from '../../protocol/types.ts';
import { present } from '../../shared/assert.ts';
import { invalid } from '../../shared/errors.ts';
import type { HostId } from '../../shared/ids.ts';
import { notify } from '../db/notify.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { append } from '../events/append.ts';
import { wasAppendedLately } from '../events/store.ts';
import { instanceView } from '../instances/model.ts';
import {
  getInstance,
  type InstanceRow,
  lockInstance,
  markGrown,
  SavedHead,
  setHostKeys,
} from '../instances/store.ts';
import { markKeysUsed } from '../ssh-keys/store.ts';
import { announceVm, changeFor } from './change-for.ts';
import { announceFlushFailure, answerFlushes, failFlushes } from './flush-vm.ts';
import { hasMemory, isMemoryKey, orphanMemory, recordMemory } from './memory-store.ts';
import { observe, type StateObservation, TROUBLE_CODES, type VmState } from './model.ts';
import { noteProblem } from './move-store.ts';
import {
  clearDirtyBytes,
  findVm,
  hostNameOf,
  loseExecs,
  markReleased,
  newestVm,
  reasonOf,
  setAppliedKeys,
  updateVm,
  type VmRow,
} from './store.ts';

/** How long after a failed resume a VM of a drained host is started again. */
const AGAIN_S = 60;

/** Applies a host's observation of a VM; `fenced` when the VM is not, or no longer, that host's. */
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
    const { observed } = report;
    if (observed.kind === 'deleted') return instance.deleting ? release(tx, vm, host_id) : 'fenced';
    if (instance.vm_id !== vm.id) return 'fenced';
    if (observed.kind === 'disk_grown') {
      await markGrown(tx, instance.id, observed.disk_bytes);
      await notify(tx, 'instance', instance.id);
      return 'accepted';
    }
    if (observed.kind === 'suspended') {
      const { memory } = observed;
      await checkMemory(tx, vm, memory);
      if (WANTED_RUNNING.includes(vm.state) || memory.generation !== instance.generation) return 'unwanted';
      await recordMemory(tx, vm, memory, vm.state === 'suspending');
    }
    const seen =
      observed.kind === 'stopped' ? await judgeStop(tx, vm, observed) : await judged(tx, vm, observed);
    const changed = await transition(tx, vm, instance, seen, host_id);
    if (observed.kind === 'stopped') {
      // A repeated report of the end changes nothing.
      const is_stopped = vm.state === 'stopped' || (changed && seen.kind === 'stopped');
      return is_stopped ? 'accepted' : 'unwanted';
    }
    // Its host keeps what is lost until a report of it counts.
    return !changed && observed.kind === 'running' && observed.recovered ? 'ignored' : 'accepted';
  });
}

const NOT_SAVED =
  'Its host reported the stop without the commit that has the last writes: the files of the host are gone, or the database lost that commit. What the guest wrote after the last flush may be lost.';

/**
 * A stop counts if it names the head: then that has everything that the guest wrote. Without it the VM has failed. Only where it had
 * failed before, or its guest never ran, a stop may end it with the loss of what an earlier failure left.
 */
async function judgeStop(
  tx: Tx,
  vm: VmRow,
  seen: StateObservation & { readonly kind: 'stopped' },
): Promise<StateObservation> {
  // In any other state the report changes nothing.
  if (vm.state !== 'stopping') return seen;
  const { commit_id } = await SavedHead.read(tx, vm.instance_id);
  if (seen.commit_id === commit_id) return seen;
  const had_failed = !vm.guest_ran || vm.stopped_at !== null;
  if (seen.commit_id === null && seen.recovered && had_failed) return seen;
  const message = seen.recovered?.message ?? NOT_SAVED;
  return { kind: 'failed', reason: { code: 'vm_died', message }, guest_ran: true };
}

/** The object key must be of this placement, and the data key the instance's memory key, which no fork shares. @throws AppError INVALID_REQUEST */
async function checkMemory(tx: Tx, { instance_id, epoch }: VmRow, memory: MemoryRef): Promise<void> {
  const is_its_own = memory.epoch === epoch && memory.key.startsWith(`disks/${instance_id}/mem/${epoch}-`);
  if (!is_its_own)
    throw invalid('observed.memory.key', 'is not a memory object of this instance and placement');
  if (!(await isMemoryKey(tx, instance_id, memory.key_id)))
    throw invalid('observed.memory.key_id', 'is not the memory key of this instance');
}

/** States in which the guest is wanted: its host must resume it, even if the suspend succeeded. */
const WANTED_RUNNING: readonly VmState[] = ['starting', 'running', 'restarting'];

/** The guest accepts exactly these keys, and connections made with others have ended: this confirms a revocation. */
export async function confirmKeys(
  db: Db,
  host_id: HostId,
  report: KeysReport,
): Promise<'accepted' | 'fenced'> {
  return transaction(db, async (tx) => {
    const vm = { id: report.vm_id, host_id, epoch: report.epoch };
    const instance_id = await setAppliedKeys(tx, vm, report.applied_keys);
    if (instance_id === null) return 'fenced';
    await notify(tx, 'routes', instance_id);
    return 'accepted';
  });
}

async function release(tx: Tx, vm: VmRow, host_id: HostId): Promise<'accepted'> {
  await markReleased(tx, vm.instance_id, host_id);
  await failFlushes(tx, vm.id, 'The instance was deleted.');
  await notify(tx, 'deleting');
  return 'accepted';
}

const RESTARTED =
  'The VM had failed and was started again. Its disk has everything that the guest wrote to it; what the guest held in memory is lost.';

async function judged(tx: Tx, vm: VmRow, seen: StateObservation): Promise<StateObservation> {
  // Only a boot that resumes can go back to its memory.
  if (seen.kind === 'resume_failed' && !(await hasMemory(tx, vm.id)))
    return { kind: 'failed', reason: { ...seen.reason, code: 'start_failed' }, guest_ran: false };
  return withRestart(vm, seen);
}

/** The first report of a boot that was started by itself says what was lost, unless its host knows of more. */
function withRestart(vm: VmRow, seen: StateObservation): StateObservation {
  const first = seen.kind === 'running' && vm.state === 'starting' && vm.restarted_at !== null;
  if (!first || seen.recovered || seen.resumed) return seen;
  return { ...seen, recovered: { code: 'recovered', message: RESTARTED } };
}

/** False: the report changes nothing in this state. */
async function transition(
  tx: Tx,
  vm: VmRow,
  instance: InstanceRow,
  seen: StateObservation,
  host_id: HostId,
): Promise<boolean> {
  const next = observe(vm.state, seen.kind);
  if (next === null) return false;
  // It answers an older restart: another one was requested meanwhile.
  if (seen.kind === 'running' && seen.reboots < vm.reboots) return false;
  if (next === vm.state && next === 'stopping' && seen.kind === 'powered_off') return false;
  const adopted = seen.kind === 'running' && vm.state === 'running';
  const change = changeFor(vm, next, seen, host_id);
  const host_key_changed = hasNewHostKey(vm, instance, seen);
  if (host_key_changed && change.reason?.code === 'ready')
    change.reason = { ...change.reason, message: READY_WITH_NEW_HOST_KEY };
  // A trouble reason is dropped: the agent reports it again if it persists.
  const has_problem = seen.kind === 'running' && seen.access_problem !== undefined;
  if (adopted && !has_problem && !TROUBLE_CODES.includes(vm.reason_code ?? '')) change.reason = reasonOf(vm);
  await updateVm(tx, vm, change);
  if (seen.kind === 'running' || next === 'stopping') await orphanMemory(tx, vm.id);
  // A guest without a host key has none to show.
  const shows_keys = seen.kind === 'running' && seen.host_keys.length > 0;
  if (shows_keys && (instance.host_keys === null || host_key_changed))
    await setHostKeys(tx, instance.id, [...seen.host_keys]);
  // A receipt would claim that lost writes are durable.
  const lost =
    seen.kind === 'stopped' && seen.recovered?.code === 'recovered' ? seen.recovered.message : null;
  if (lost !== null) await failFlushes(tx, vm.id, lost);
  else if (next === 'stopped' || next === 'suspended')
    await answerFlushes(tx, vm.id, await SavedHead.read(tx, vm.instance_id));
  if (next === 'stopped' || next === 'suspended') await clearDirtyBytes(tx, vm.instance_id);
  if (next === 'failed') await failFlushes(tx, vm.id, 'The VM has failed.');
  // A boot without the memory of the suspended one.
  const cold = seen.kind === 'running' && vm.state === 'starting' && !seen.resumed;
  if (next === 'stopped' || next === 'failed' || cold) await loseExecs(tx, instance.id);
  await announceVm(tx, vm, next, seen, host_id);
  // Each attempt reports it; one event is enough.
  if (seen.kind === 'flush_pending' && vm.reason_code !== 'flush_pending') {
    await announceFlushFailure(tx, instance.id, 'final', seen.reason, vm.reason_actor ?? host_id);
  }
  await notify(tx, 'instance', instance.id);
  await notify(tx, 'routes', instance.id);
  if (seen.kind === 'resume_failed' && change.move)
    await noteProblem(tx, vm.id, seen.reason.message, AGAIN_S);
  if (vm.move !== null && (next === 'suspended' || next === 'stopped')) await notify(tx, 'moving');
  if (change.desired !== undefined) await notify(tx, 'host', host_id);
  return true;
}

const READY_WITH_NEW_HOST_KEY =
  'The guest answers and accepts SSH. Its host key has changed: somebody in the guest replaced or removed the old one.';

/**
 * Only root in the guest changes its host key. Our copy must follow, or strict clients refuse the connection. Without a
 * boot the file may differ from the key that sshd has loaded, so it does not count.
 */
function hasNewHostKey(vm: VmRow, { host_keys }: InstanceRow, seen: StateObservation): boolean {
  if (seen.kind !== 'running' || seen.resumed || vm.state === 'running') return false;
  const keysOf = (list: readonly HostKey[]) => list.map((key) => key.public_key).join('\n');
  return host_keys !== null && seen.host_keys.length > 0 && keysOf(host_keys) !== keysOf(seen.host_keys);
}

/** Sets `last_used_at` of keys that logged in. A guest is believed only about keys that its instance allows. */
export async function recordLogins(
  db: Db,
  host_id: HostId,
  { vm_id, epoch, fingerprints }: LoginsReport,
): Promise<'accepted' | 'fenced'> {
  return transaction(db, async (tx) => {
    const vm = await findVm(tx, vm_id);
    if (!vm || vm.host_id !== host_id || vm.epoch !== epoch) return 'fenced';
    if ((await newestVm(tx, vm.instance_id))?.id !== vm_id) return 'fenced';
    await markKeysUsed(tx, vm.instance_id, fingerprints);
    return 'accepted';
  });
}

// A host has an overlay of a VM that the database does not know: the database was set back to an earlier time, and the instance has
// continued without what that VM wrote. Its owner is told.

/** `ignored`: the VM is known, or its host's next start tells of it. `fenced`: there is no such instance. */
export async function tellOfUnknownVm(
  db: Db,
  host_id: HostId,
  { instance_id, vm_id }: UnknownVmReport,
): Promise<ReportResponse['outcome']> {
  return transaction(db, async (tx) => {
    await lockInstance(tx, instance_id);
    const row = await getInstance(tx, instance_id);
    if (!row || row.deleting) return 'fenced';
    if (await findVm(tx, vm_id)) return 'ignored';
    // The next start there finds the overlay, and reports what is lost.
    if (row.host_id === host_id) return 'ignored';
    // A host that makes up VMs cannot flood an owner.
    if (await wasAppendedLately(tx, instance_id, 'vm.recovered', host_id)) return 'ignored';
    const message = `The database was set back to an earlier time. A VM of this instance ran after that time on host ${await hostNameOf(tx, host_id)}; what it wrote is not on the instance's disk. That host keeps a copy: ask the operator.`;
    const instance = instanceView(row);
    const reason = { code: 'recovered' as const, message, actor: host_id };
    await append(tx, {
      org_id: row.org_id,
      instance_id,
      type: 'vm.recovered',
      data: { instance: { ...instance, vm: { ...instance.vm, reason } } },
      actor: host_id,
    });
    return 'accepted';
  });
}
