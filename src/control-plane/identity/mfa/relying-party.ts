/**
 * The relying party's id and origin (WebAuthn L3, sections 5.1.3 and 13.4.9). The id is the public host name. It cannot
 * be an address: for a loopback address it is `localhost`, which browsers treat as secure without TLS; at any other
 * address there are no passkeys.
 */
import { isIP } from 'node:net';
import { AppError } from '../../../shared/errors.ts';

export const RP_NAME = 'Berth';

export interface RelyingParty {
  readonly id: string;
  readonly origin: string;
}

/** Null where WebAuthn cannot work. */
export function relyingParty(public_url: string): RelyingParty | null {
  const url = new URL(public_url);
  const host = url.hostname.replace(/^\[(.*)\]$/, '$1');
  if (host === 'localhost' || host === '::1' || (isIP(host) === 4 && host.startsWith('127.'))) {
    url.hostname = 'localhost';
  } else if (isIP(host) !== 0) {
    return null;
  }
  return { id: url.hostname, origin: url.origin };
}

/** @throws AppError CONFLICT where WebAuthn cannot work */
export function requireRelyingParty(public_url: string): RelyingParty {
  const found = relyingParty(public_url);
  if (found) return found;
  throw new AppError('CONFLICT', {
    message: 'Passkeys need a host name, and this service is reached at an address: set BERTH_PUBLIC_URL.',
  });
}
