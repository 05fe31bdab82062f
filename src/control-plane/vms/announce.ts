import type { Observation } from '../../protocol/types.ts';
import { present } from '../../shared/assert.ts';
import type { Tx } from '../db/pool.ts';
import { append } from '../events/append.ts';
import type { EventType } from '../events/model.ts';
import { getInstance } from '../instances/store.ts';
import { instanceView } from '../instances/view.ts';
import { causeOf } from './cause.ts';
import type { VmState } from './model.ts';
import type { VmRow } from './store.ts';

/** These complete what somebody asked for: their actor is who asked. The others are the host's observations. */
const COMPLETIONS: readonly EventType[] = ['vm.started', 'vm.restarted', 'vm.stopped', 'vm.suspended'];

/**
 * Appends the events of a state change. The row is changed already.
 * @param vm the row before its change @param actor who reported it
 */
export async function announce(
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
