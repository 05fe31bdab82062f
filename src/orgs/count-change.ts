/**
 * How many changes an organisation makes in an hour: quota `changes`. Each change may leave rows that are kept for days (stored
 * answers, events) or for good (audit entries, names of HTTP ports), and no other quota bounds those.
 *
 * Removals go on for as much again, so that a key that floods the organisation can be revoked. What a person changes of the own
 * account is counted for the person, by the default limit.
 */

import type { Db } from '../db/pool.ts';
import { countInWindow } from '../db/shared-limit.ts';
import { AppError } from '../lib/errors.ts';
import type { OrgId } from '../lib/ids.ts';
import { type QuotaLimits, refusalOf } from '../lib/quotas.ts';
import { CHANGES, CHANGES_WINDOW_S, findQuotas } from './quota-store.ts';
import { limitOf } from './quotas.ts';

export interface Change {
  readonly org_id: OrgId;
  /** It is of this account, not of the organisation; null: it is not. */
  readonly account: string | null;
  readonly removes: boolean;
}

/** Call it before the transaction of the change: concurrent ones must not wait for each other. @throws AppError RATE_LIMITED */
export async function countChange(
  db: Db,
  defaults: QuotaLimits,
  { org_id, account, removes }: Change,
): Promise<void> {
  const own = account === null ? await findQuotas(db, org_id) : undefined;
  const limit = limitOf('changes', own ?? {}, defaults);
  if (limit === null) return;
  const { count, ends_in_ms } = await countInWindow(db, `${CHANGES}${account ?? org_id}`, CHANGES_WINDOW_S);
  if (count <= (removes ? 2 * limit : limit)) return;
  const retry_after_seconds = Math.max(1, Math.ceil(ends_in_ms / 1000));
  const said =
    account === null
      ? refusalOf('changes', limit, limit)
      : { message: `The account was changed ${limit} times in an hour. Wait.` };
  throw new AppError('RATE_LIMITED', { ...said, retry_after_seconds });
}
