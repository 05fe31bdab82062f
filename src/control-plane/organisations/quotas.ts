/**
 * Reads and sets the quotas of organisations, and refuses a request that would exceed one. A quota's limit is the one
 * that was set for the organisation, or else the default.
 */
import { AppError } from '../../shared/errors.ts';
import type { OrgId } from '../../shared/ids.ts';
import {
  isLimit,
  type Limit,
  ORGANISATION_QUOTAS,
  type OrganisationQuota,
  type OwnQuotas,
  type QuotaLimits,
  requireWithin,
} from '../../shared/quotas.ts';
import type { Tx } from '../db/pool.ts';
import { countUsed, findQuotas, lockQuotas, updateQuotas } from './quota-store.ts';

function limitOf(quota: OrganisationQuota, own: OwnQuotas, defaults: QuotaLimits): Limit {
  const set = own[quota];
  return set === undefined ? defaults[quota] : set;
}

export interface QuotaState {
  readonly limit: Limit;
  readonly source: 'default' | 'set';
  readonly used: number;
}

/** @throws AppError NOT_FOUND */
export async function readQuota(
  tx: Tx,
  defaults: QuotaLimits,
  org_id: OrgId,
): Promise<Record<OrganisationQuota, QuotaState>> {
  const own = await findQuotas(tx, org_id);
  if (!own) throw new AppError('NOT_FOUND');
  return quotaStates(own, defaults, await countUsed(tx, org_id, ORGANISATION_QUOTAS));
}

export function quotaStates(
  own: OwnQuotas,
  defaults: QuotaLimits,
  used: Readonly<Record<OrganisationQuota, number>>,
): Record<OrganisationQuota, QuotaState> {
  const state = (quota: OrganisationQuota): QuotaState => ({
    limit: limitOf(quota, own, defaults),
    source: own[quota] === undefined ? 'default' : 'set',
    used: used[quota],
  });
  return Object.fromEntries(ORGANISATION_QUOTAS.map((quota) => [quota, state(quota)])) as Record<
    OrganisationQuota,
    QuotaState
  >;
}

/**
 * Refuses a request past a quota. Call it in the transaction that creates what counts: if a quota is limited, the
 * organisation stays locked until the transaction ends, so that concurrent requests do not pass the quota together. Lock
 * an instance before its organisation. Without a limit nothing is locked or counted.
 * @throws AppError QUOTA_EXCEEDED naming the first quota that does not allow it, NOT_FOUND
 */
export async function checkQuota(
  tx: Tx,
  defaults: QuotaLimits,
  org_id: OrgId,
  more: Partial<Record<OrganisationQuota, number>>,
): Promise<void> {
  const wanted = ORGANISATION_QUOTAS.filter((quota) => more[quota] !== undefined);
  const limitedBy = (own: OwnQuotas) => wanted.filter((quota) => limitOf(quota, own, defaults) !== null);
  const unlocked = await findQuotas(tx, org_id);
  if (!unlocked) throw new AppError('NOT_FOUND');
  if (limitedBy(unlocked).length === 0) return;
  const own = await lockQuotas(tx, org_id);
  if (!own) throw new AppError('NOT_FOUND');
  const limited = limitedBy(own);
  if (limited.length === 0) return;
  // A separate statement after the lock sees commits that this transaction waited for.
  const used = await countUsed(tx, org_id, limited);
  for (const quota of limited) requireWithin(quota, limitOf(quota, own, defaults), used[quota], more[quota]);
}

export type QuotaChange = Partial<Record<OrganisationQuota, Limit | 'default'>>;

/** Sets the named quotas. Existing use remains, even beyond its quota. @throws AppError NOT_FOUND, INVALID_REQUEST */
export async function setQuota(tx: Tx, org_id: OrgId, change: QuotaChange): Promise<void> {
  const set: Partial<Record<OrganisationQuota, Limit>> = {};
  const reset: OrganisationQuota[] = [];
  for (const quota of ORGANISATION_QUOTAS) {
    const limit = change[quota];
    if (limit === undefined) continue;
    if (limit === 'default') reset.push(quota);
    else if (isLimit(limit)) set[quota] = limit;
    else {
      throw new AppError('INVALID_REQUEST', {
        message: `${quota}: must be a whole number from 0 to 2147483647, or null for unlimited`,
      });
    }
  }
  if (!(await updateQuotas(tx, org_id, set, reset))) throw new AppError('NOT_FOUND');
}
