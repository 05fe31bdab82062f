import type { Tx } from '../db/pool.ts';
import type { AuditId, OrgId } from '../lib/ids.ts';

export interface AuditFilter {
  readonly action?: string;
  readonly actor?: string;
}

export async function listAudit(
  tx: Tx,
  org_id: OrgId,
  filter: AuditFilter,
  before: string | null,
  limit: number,
) {
  let query = tx
    .selectFrom('audit_log')
    .select(['id', 'seq', 'at', 'actor', 'action', 'target', 'ip', 'request_id', 'data'])
    .where('org_id', '=', org_id);
  if (filter.action !== undefined) query = query.where('action', '=', filter.action);
  if (filter.actor !== undefined) query = query.where('actor', '=', filter.actor);
  if (before !== null) query = query.where('id', '<', before as AuditId);
  return query.orderBy('id', 'desc').limit(limit).execute();
}
