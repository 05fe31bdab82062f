import type { FastifyRequest } from 'fastify';
import type { OrgId, ServiceAccountId, UserId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import { actorOf } from '../identity/principal.ts';
import { principalOf } from './access.ts';
import type { MutationContext } from './mutate.ts';

/** Writes an audit entry in another organisation than the request's: one just created or joined. */
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

/** Writes an audit entry for a caller without a credential, who uses a mailed token. */
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
