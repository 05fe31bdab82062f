/**
 * A browser's way to a private port. A ticket, for a session, becomes a cookie of one hostname. The cookie stands for the
 * session: it ends with it, and with the member's access to the instance.
 */
import { AppError, invalid } from '../../shared/errors.ts';
import type { Tx } from '../db/pool.ts';
import type { Principal } from '../identity/principal.ts';
import {
  hashToken,
  newToken,
  PORT_COOKIE_PREFIX,
  PORT_TICKET_PREFIX,
  tokenPrefix,
} from '../identity/tokens.ts';
import { lockedPort, type PortPlace } from './change-ports.ts';
import { COOKIE_SECONDS, type HttpEndpoint, hostnameOf, urlOf } from './model.ts';
import { insertCookie, insertTicket, takeTicket } from './store.ts';

/** Where the ingress redeems a ticket. */
const OPEN_PATH = '/.berth/open';

/** @param wanted one of the port's active hostnames; null: its own. @throws AppError NOT_FOUND, CONFLICT, INVALID_REQUEST, FORBIDDEN */
export async function openPort(
  tx: Tx,
  endpoint: HttpEndpoint,
  principal: Principal,
  place: PortPlace,
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
  const { expires_at } = await insertTicket(tx, {
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
  const found = await takeTicket(tx, hostname, hashToken(ticket));
  if (!found) return null;
  const cookie = newToken(PORT_COOKIE_PREFIX);
  await insertCookie(tx, hashToken(cookie), found);
  return { cookie, max_age_seconds: COOKIE_SECONDS };
}
