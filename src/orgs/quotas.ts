/** Quotas: how many instances, and how much disk, an organisation has, and how many cpus and memory run at a time. */
import type { Tx } from '../db/pool.ts';
import { AppError } from '../lib/errors.ts';
import type { OrgId } from '../lib/ids.ts';
import {
  loadQuota,
  QUOTAS,
  type Quota,
  type QuotaChange,
  type QuotaState,
  updateQuota,
} from './quota-store.ts';
import { lockOrganisation } from './store.ts';

const WORDS: Record<Quota, string> = {
  instances: 'instances',
  cpus: 'cpus of running VMs',
  memory_mib: 'memory_mib of running VMs',
  disk_gib: 'disk_gib of instances',
};

/** Limits and what is used of them. @throws AppError NOT_FOUND */
export async function readQuota(tx: Tx, org_id: OrgId): Promise<QuotaState> {
  const state = await loadQuota(tx, org_id);
  if (!state) throw new AppError('NOT_FOUND');
  return state;
}

/**
 * Refuses what would go beyond a quota. Call it in the transaction that then takes it: the organisation is held until
 * the transaction's end, so that any number at once do not overshoot together. What holds an instance as well has
 * locked that first.
 * @throws AppError QUOTA_EXCEEDED naming the first quota that does not allow it
 */
export async function checkQuota(tx: Tx, org_id: OrgId, more: Partial<Record<Quota, number>>): Promise<void> {
  await lockOrganisation(tx, org_id);
  // A statement of its own: it sees what was committed while this one waited for the lock.
  const state = await readQuota(tx, org_id);
  const exceeded = QUOTAS.find((quota) => {
    const wanted = more[quota] ?? 0;
    const { limit, used } = state[quota];
    return wanted > 0 && limit !== null && used + wanted > limit;
  });
  if (exceeded === undefined) return;
  const { limit, used } = state[exceeded];
  throw new AppError('QUOTA_EXCEEDED', {
    message: `The organisation's quota of ${WORDS[exceeded]} is ${limit}; ${used} used, ${more[exceeded]} more wanted.`,
    details: [{ field: exceeded, issue: `quota ${limit}, used ${used}, wanted ${more[exceeded]}` }],
  });
}

/**
 * Sets the quotas that are named (null: no limit) and answers all. What is in use already stays, even beyond.
 * @throws AppError NOT_FOUND, INVALID_REQUEST
 */
export async function setQuota(tx: Tx, org_id: OrgId, change: QuotaChange): Promise<QuotaState> {
  for (const quota of QUOTAS) {
    const limit = change[quota];
    if (limit === undefined || limit === null) continue;
    if (Number.isSafeInteger(limit) && limit >= 0 && limit <= 2 ** 31 - 1) continue;
    throw new AppError('INVALID_REQUEST', {
      message: `${quota}: must be a whole number from 0 to 2147483647, or null for no limit`,
    });
  }
  await updateQuota(tx, org_id, change);
  return readQuota(tx, org_id);
}
