/**
 * Decides whether one HTTP request on a connection with secrets may be sent, and makes its header fields, with secrets in place of their
 * placeholders.
 */
import type { TLSSocket } from 'node:tls';
import { sentName } from '../../shared/egress-policy.ts';
import type { CheckedRequest } from '../../shared/http-request.ts';
import type { Semaphore } from '../../shared/semaphore.ts';
import type { Guest } from './guest.ts';
import { portOf } from './http-relay.ts';
import { type Replaced, replacePlaceholders, TooLarge } from './placeholders.ts';
import type { ServerTrouble } from './secret-server.ts';

export const HTTPS_PORT = 443;

/** One VM's use of what all share. */
export interface Use {
  connections: number;
  streams: number;
  readonly opening: Semaphore;
}

export interface Intercepted {
  readonly guest: Guest;
  readonly name: string;
  readonly use: Use;
  /** The verified connection, for its first use. */
  readonly server: TLSSocket | ServerTrouble;
  /** Makes another. @throws ServerTrouble */
  readonly dial: () => Promise<TLSSocket>;
}

/** Why a request gets no value and no server. */
export interface RefusedRequest {
  readonly status: number;
  readonly said: string;
}

export const NOT_POSSIBLE = 'CONNECT and TRACE are not possible with a secret.';

/** The fields with values, or why the request goes nowhere. */
export function decide(
  { guest, name }: Intercepted,
  { method, checked }: { readonly method: string; readonly checked: CheckedRequest },
  fields: () => readonly string[],
): Replaced | RefusedRequest {
  // A server answers TRACE with the fields that it got.
  if (method === 'TRACE' || method === 'CONNECT') return { status: 405, said: NOT_POSSIBLE };
  if (sentName(checked.hostname) !== name || portOf(checked, HTTPS_PORT) !== HTTPS_PORT)
    return { status: 421, said: `This connection is for ${name}, and the request names another host.` };
  try {
    return replacePlaceholders(fields(), guest.secretsFor(name));
  } catch (error) {
    if (error instanceof TooLarge) return { status: 431, said: 'The header fields are too large.' };
    throw error;
  }
}

/** HTTP/3 passes by the gate, with placeholders. */
export function passesToGuest(field: string): boolean {
  return field !== 'alt-svc';
}
