/** A connection to a TCP port of a guest, for `berth forward`: one WebSocket each, with a credential that has `vm:write`. */
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import { AppError, invalid } from '../../shared/errors.ts';
import { authenticate, type KnownCredential } from '../identity/authenticate.ts';
import type { Principal } from '../identity/principal.ts';
import { forwardPlace } from './forward.ts';
import type { AdmitContext, StreamKind } from './guest-streams.ts';

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
  await limits.countPrincipal(principal);
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
