import type { HostId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { findFlushRequester, type InstanceRow } from './store.ts';

/** Why a flush was made. */
const FLUSH_TRIGGERS = ['request', 'auto', 'stop', 'suspend'] as const;
export type FlushTrigger = (typeof FLUSH_TRIGGERS)[number];

export interface FlushCause {
  readonly trigger: FlushTrigger;
  /** Who asked for the flush, the stop or the suspend; of an automatic flush, the host. */
  readonly actor: string;
}

/** Of the flush that the host commits now. The caller has locked the instance. */
export async function flushCause(tx: Tx, row: InstanceRow, host_id: HostId): Promise<FlushCause> {
  // A host runs one flush of a disk at a time, and says so before it begins a requested one.
  const requested_by = await findFlushRequester(tx, row.id);
  if (requested_by !== undefined) return { trigger: 'request', actor: requested_by };
  const actor = row.reason_actor ?? host_id;
  if (row.state === 'stopping') return { trigger: 'stop', actor };
  if (row.state === 'suspending') return { trigger: 'suspend', actor };
  return { trigger: 'auto', actor: host_id };
}
