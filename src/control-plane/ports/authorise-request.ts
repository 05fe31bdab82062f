/** Whether a client may use a port now. Nothing is cached: the ingress asks again every 2 s. */
import type { AuthoriseHttpRequest, AuthoriseHttpResponse } from '../../protocol/ingress-types.ts';
import { AppError } from '../../shared/errors.ts';
import type { HttpPortId, OrgId } from '../../shared/ids.ts';
import type { Db } from '../db/pool.ts';
import { authenticate, isCredential, reauthenticate } from '../identity/authenticate.ts';
import type { Principal } from '../identity/principal.ts';
import { hashToken, PORT_COOKIE_PREFIX, tokenPrefix } from '../identity/tokens.ts';
import { type HttpEndpoint, hostnameOf } from './model.ts';
import { activeOwner, findCookie, findServed } from './store.ts';

/** Of every token of Berth. Any other bearer is the guest's. */
const OURS = 'berth_';

export async function authoriseRequest(
  db: Db,
  endpoint: HttpEndpoint,
  { port_id, hostname, address, bearer, cookie }: AuthoriseHttpRequest,
): Promise<AuthoriseHttpResponse> {
  const is_bearer = bearer?.startsWith(OURS) === true;
  const is_made_up = is_bearer ? !isCredential(bearer) : cookie !== null && !isPortCookie(cookie);
  // The ingress asks about private ports, and anybody can send it anything.
  if (is_made_up) return { outcome: 'unauthenticated' };
  const served = await findServed(db, port_id);
  if (!served) return { outcome: 'unknown' };
  const is_own = hostname === hostnameOf(endpoint, served.label);
  if (!is_own && (await activeOwner(db, hostname)) !== port_id) return { outcome: 'unknown' };
  if (served.access === 'public') return { outcome: 'allowed', by: 'public' };
  const { org_id } = served;
  try {
    if (is_bearer) {
      const headers = { authorization: `Bearer ${bearer}`, org: org_id, ip: address };
      return judged(await authenticate(db, headers), org_id, 'bearer');
    }
    const principal = await ofCookie(db, { port_id, hostname, address, cookie });
    return principal ? judged(principal, org_id, 'cookie') : { outcome: 'unauthenticated' };
  } catch (error) {
    if (!(error instanceof AppError)) throw error;
    if (error.code === 'FORBIDDEN') return { outcome: 'forbidden' };
    if (error.code === 'UNAUTHENTICATED') return { outcome: 'unauthenticated' };
    throw error;
  }
}

async function ofCookie(
  db: Db,
  { port_id, hostname, address, cookie }: Omit<AuthoriseHttpRequest, 'bearer'>,
): Promise<Principal | null> {
  if (cookie === null) return null;
  const found = await findCookie(db, port_id as HttpPortId, hostname, hashToken(cookie));
  if (!found) return null;
  return reauthenticate(db, { kind: 'session', id: found.session_id }, found.org_id, address);
}

function isPortCookie(cookie: string): boolean {
  return tokenPrefix(cookie) === PORT_COOKIE_PREFIX;
}

function judged(
  { scopes, org_id }: Principal,
  of_port: OrgId,
  by: 'bearer' | 'cookie',
): AuthoriseHttpResponse {
  const may = scopes.has('vm:read') && org_id === of_port;
  return may ? { outcome: 'allowed', by } : { outcome: 'forbidden' };
}
