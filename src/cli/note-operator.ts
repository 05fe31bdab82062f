import type { Tx } from '../db/pool.ts';
import { findFirstOrg } from '../orgs/store.ts';
import type { ServerContext } from './server-context.ts';

/**
 * What the operator has done to the installation as a whole, in the audit log of the organisation that it began with:
 * every entry belongs to one (ADR 32). In the transaction that does it.
 */
export async function noteOperator(
  tx: Tx,
  { audit }: Pick<ServerContext, 'audit'>,
  action: string,
  target: string,
  data: Record<string, unknown> = {},
): Promise<void> {
  const org_id = await findFirstOrg(tx);
  if (org_id === null) return;
  await audit.append(tx, org_id, { actor: 'operator', action, target, ip: null, request_id: null, data });
}
