import type { FastifyRequest } from 'fastify';
import { actorOf } from '../auth/principal.ts';
import type { Tx } from '../db/pool.ts';
import type { OrgId, ServiceAccountId, UserId } from '../lib/ids.ts';
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
  const data = { credential: principal.credential.id, ...entry.data };
  await appendAuditOf({ audit }, tx, request, org_id, { actor: actorOf(principal), ...entry, data });
}

/** An audit entry of somebody who acts without a credential: by a token that a mail brought. */
export async function appendAuditOf(
  { audit }: Pick<MutationContext, 'audit'>,
  tx: Tx,
  request: FastifyRequest,
  org_id: OrgId,
  entry: {
    readonly actor: UserId | ServiceAccountId;
    readonly action: string;
    readonly target: string | null;
    readonly data?: Record<string, unknown>;
  },
): Promise<void> {
  const { actor, action, target, data = {} } = entry;
  await audit.append(tx, org_id, { actor, action, target, ip: request.ip, request_id: request.id, data });
}
