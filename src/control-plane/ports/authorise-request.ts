/**
 * Decides for an ingress whether a client may use an HTTP port now. Nothing is cached here: the ingress asks again
 * every 2 s.
 *
 * A private port admits a session token or an API key. A browser sends neither, so it gets a ticket of its session for
 * one hostname of the port (`openPrivatePort`). The ingress exchanges the ticket for a cookie of that hostname
 * (`redeemTicket`). The cookie ends with the session, and with the member's access to the instance.
 */
import type { AuthoriseHttpRequest, AuthoriseHttpResponse } from '../../protocol/ingress-types.ts';
import { AppError, invalid } from '../../shared/errors.ts';
import type { HttpPortId, OrgId } from '../../shared/ids.ts';
import type { Db, Tx } from '../db/pool.ts';
import { authenticate, isCredential, reauthenticate } from '../identity/authenticate.ts';
import type { Principal } from '../identity/principal.ts';
import {
  hashToken,
  newToken,
  PORT_COOKIE_PREFIX,
  PORT_TICKET_PREFIX,
  tokenPrefix,
} from '../identity/tokens.ts';
import { lockedPort, type PortRef } from './change-ports.ts';
import { COOKIE_SECONDS, type HttpEndpoint, hostnameOf, urlOf } from './model.ts';
import {
  activeOwner,
  findCookie,
  findServed,
  insertCookie,
  insertPortTicket,
  takePortTicket,
} from './store.ts';

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

/** Where the ingress redeems a ticket. */
const OPEN_PATH = '/.berth/open';

/** @param wanted one of the port's active hostnames; null: its own. @throws AppError NOT_FOUND, CONFLICT, INVALID_REQUEST, FORBIDDEN */
export async function openPrivatePort(
  tx: Tx,
  endpoint: HttpEndpoint,
  principal: Principal,
  place: PortRef,
  wanted: string | null,
): Promise<{ url: string; expires_at: Date }> {
  const { credential, org_id } = principal;
  if (credential.kind !== 'session') throw new AppError('FORBIDDEN');
  const row = await lockedPort(tx, principal, place);
  if (row.access === 'public') {
    throw new AppError('CONFLICT', {
      message: 'The port is public: anybody can open its URL. Only a private port takes a ticket.',
    });
  }
  const own = hostnameOf(endpoint, row.label);
  const hostname = wanted ?? own;
  const known = hostname === own || row.hostnames.some((each) => each.active && each.hostname === hostname);
  if (!known) throw invalid('hostname', 'is not an active hostname of the port');
  const ticket = newToken(PORT_TICKET_PREFIX);
  const { expires_at } = await insertPortTicket(tx, {
    ticket_hash: hashToken(ticket),
    port_id: place.id,
    hostname,
    session_id: credential.id,
    org_id,
  });
  return { url: `${urlOf(endpoint, hostname)}${OPEN_PATH}?ticket=${ticket}`, expires_at };
}

/** The cookie for a ticket of this hostname; null when there is none, or it was used or has expired. */
export async function redeemTicket(
  tx: Tx,
  hostname: string,
  ticket: string,
): Promise<{ cookie: string; max_age_seconds: number } | null> {
  if (tokenPrefix(ticket) !== PORT_TICKET_PREFIX) return null;
  const found = await takePortTicket(tx, hostname, hashToken(ticket));
  if (!found) return null;
  const cookie = newToken(PORT_COOKIE_PREFIX);
  await insertCookie(tx, hashToken(cookie), found);
  return { cookie, max_age_seconds: COOKIE_SECONDS };
}
