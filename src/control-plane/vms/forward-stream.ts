/**
 * Opens connections to TCP ports of a guest for `berth forward`: one WebSocket for each connection. The caller's
 * credential needs the scope `vm:write`. `runningTarget` finds a running VM for an ingress, which reaches it through
 * the agent of the VM's host.
 */
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import { AppError, invalid } from '../../shared/errors.ts';
import type { HostId, InstanceId, OrgId, VmId } from '../../shared/ids.ts';
import type { Db, Tx } from '../db/pool.ts';
import { authenticate, type KnownCredential, reauthenticate } from '../identity/authenticate.ts';
import type { Principal } from '../identity/principal.ts';
import { findInstance } from '../instances/store.ts';
import { type CommandTarget, commandTarget } from './exec-routes.ts';
import type { AdmitContext, StreamKind } from './guest-streams.ts';
import { ruleOrThrow } from './request-change.ts';
import { markUsed, newestVm } from './store.ts';

/**
 * Reauthorises the holder and finds the host of the VM. Called periodically while a connection is open, which also marks the
 * VM as used.
 * @throws AppError UNAUTHENTICATED, FORBIDDEN, NOT_FOUND, CONFLICT, VM_NOT_RUNNING
 */
async function forwardPlace(
  db: Db,
  holder: { readonly credential: KnownCredential; readonly org_id: OrgId; readonly instance_id: InstanceId },
  ip: string,
): Promise<CommandTarget> {
  const { scopes } = await reauthenticate(db, holder.credential, holder.org_id, ip);
  if (!scopes.has('vm:write')) throw new AppError('FORBIDDEN');
  const row = await findInstance(db, holder.org_id, holder.instance_id);
  if (!row) throw new AppError('NOT_FOUND');
  ruleOrThrow(row, 'exec');
  await markUsed(db, row.id);
  return commandTarget(row);
}

export const forwardStream: StreamKind = {
  name: 'forwarded connection',
  path: /^\/v1\/instances\/([^/?]{1,64})\/vm\/forward(?:\?|$)/,
  reauthorise_ms: 4_000,
  half_open: true,
  admit: async (context, { url, headers }, instance_id, ip) => {
    const principal = await principalOfUpgrade(context, headers, ip);
    if (!principal.scopes.has('vm:write')) {
      throw new AppError('FORBIDDEN', { message: 'This needs the scope vm:write, and a role that has it.' });
    }
    const port = portOf(url);
    const holder = { credential: knownCredential(principal), org_id: principal.org_id, instance_id };
    return { holder, call: ({ vm_id }) => ({ kind: 'port', instance_id, vm_id, port }) };
  },
  place: forwardPlace,
};

/** Counts as a request of the principal, like any other. @throws AppError UNAUTHENTICATED, FORBIDDEN, RATE_LIMITED */
export async function principalOfUpgrade(
  { db, limits }: AdmitContext,
  headers: IncomingHttpHeaders,
  ip: string,
): Promise<Principal> {
  const org = headers['berth-org'];
  const { authorization } = headers;
  const principal = await authenticate(db, { authorization, org: Array.isArray(org) ? org[0] : org, ip });
  limits.countPrincipal(principal);
  return principal;
}

/** @throws AppError INVALID_REQUEST */
function portOf(url: IncomingMessage['url']): number {
  const query = new URL(url ?? '', 'http://forward').searchParams;
  const unknown = [...query.keys()].find((name) => name !== 'port');
  if (unknown !== undefined) throw invalid(unknown.slice(0, 60), 'is unknown');
  const [text = '', ...more] = query.getAll('port');
  const port = /^[0-9]{1,5}$/.test(text) ? Number(text) : 0;
  if (port < 1 || port > 65_535 || more.length > 0) throw invalid('port', 'must be 1 to 65535');
  return port;
}

export function knownCredential({ credential }: Principal): KnownCredential {
  return credential.kind === 'session'
    ? { kind: 'session', id: credential.id }
    : { kind: 'key', id: credential.id, secret_hash: credential.secret_hash };
}

/** The running VM of an instance, for an ingress, which reaches it through its host's agent. Null: it is not running. */
export async function runningTarget(
  tx: Tx,
  instance_id: InstanceId,
): Promise<{ host_id: HostId; vm_id: VmId } | null> {
  const vm = await newestVm(tx, instance_id);
  if (!vm || (vm.state !== 'running' && vm.state !== 'restarting')) return null;
  return { host_id: vm.host_id, vm_id: vm.id };
}
