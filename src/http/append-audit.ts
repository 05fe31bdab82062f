import type { FastifyRequest } from 'fastify';
import { actorOf } from '../auth/principal.ts';
import type { Tx } from '../db/pool.ts';
import type { OrgId } from '../lib/ids.ts';
import { principalOf } from './access.ts';
import type { MutationContext } from './mutate.ts';

/** An audit entry in an organisation other than the one that the request acts in: one just made, or just joined. */
export async function appendAudit(
  { audit }: Pick<MutationContext, 'audit'>,
  tx: Tx,
  request: FastifyRequest,
  org_id: OrgId,
  entry: {
    readonly action: string;
    readonly target: string | null;
    readonly data?: Record<string, unknown>;
  },
): Promise<void> {
  const principal = principalOf(request);
  await audit.append(tx, org_id, {
    actor: actorOf(principal),
    action: entry.action,
    target: entry.target,
    ip: request.ip,
    request_id: request.id,
    data: { credential: principal.credential.id, ...entry.data },
  });
}
