/**
 * Calls the API for the logged-in user, with the token of the session and the chosen organisation.
 *
 * - The token is renewed before it expires, and after a 401, except from calls where a 401 means a wrong password. If
 *   the server refuses to renew it, the session ends.
 * - If an operation needs a recent password, `call` waits until the user has typed it, and then repeats the request.
 * - While the connection is lost, `call` refuses changes at once.
 */
import { signal } from '@preact/signals';
import {
  type Answer,
  Berth,
  BerthConnectionError,
  BerthError,
  type CallOptions,
  type Input,
  type OperationId,
} from '../../client/src/berth.ts';
import { OPERATIONS } from '../../client/src/generated.ts';
import { readChoice } from './choices.ts';
import { lost_since_ms, noteNoAnswer, noteResponse } from './live/connection.ts';
import { askForSudo, forget, isAboutToExpire, renew, tokenNow } from './session.ts';

/** The organisation that the session acts in; null: the one that the account joined first. */
export const org_id = signal<string | null>(readChoice('org'));

/** Routes that take a password. Their 401 may mean a wrong password, and a retry would count as a second failed attempt. */
const TAKES_A_PASSWORD = /^\/v1\/(auth\/|me\/email$)/;

/** Requested without the chosen organisation, because the user may have left that one, and the request would be refused. */
const ORGANISATIONS = '/v1/orgs';

async function authorisedFetch(input: RequestInfo | URL, init: RequestInit = {}): Promise<Response> {
  const { pathname } = new URL(String(input));
  // If the token cannot be renewed now, it is used until it expires.
  const renewed = isAboutToExpire() ? await renew().catch(() => null) : true;
  if (renewed === false) forget('Your session has ended. Log in again.');
  const send = () => {
    const headers = new Headers(init.headers);
    headers.set('authorization', `Bearer ${tokenNow() ?? ''}`);
    if (org_id.value !== null && pathname !== ORGANISATIONS) headers.set('berth-org', org_id.value);
    return observedFetch(input, { ...init, headers });
  };
  const response = await send();
  if (response.status !== 401 || TAKES_A_PASSWORD.test(pathname)) return response;
  if (tokenNow() !== null && (await renew())) return send();
  forget('Your session has ended. Log in again.');
  return response;
}

/** A fetch whose outcome shows whether the server answers. */
async function observedFetch(input: RequestInfo | URL, init: RequestInit): Promise<Response> {
  try {
    const response = await fetch(input, init);
    noteResponse(response);
    return response;
  } catch (error) {
    const aborted_here = error instanceof DOMException && error.name === 'AbortError';
    if (!aborted_here) noteNoAnswer();
    throw error;
  }
}

export const berth = new Berth({ url: location.origin, fetch: authorisedFetch });

/** A change that failed for want of a connection: the text says whether it may have happened. */
class NoConnection extends Error {
  override readonly name = 'NoConnection';
}

/**
 * While the connection is lost, only reads are tried: a change fails at once and has certainly not happened.
 * @throws BerthError, BerthConnectionError, NoConnection, SudoRefused
 */
export async function call<K extends OperationId>(
  operation: K,
  input: Input<K>,
  options?: CallOptions,
): Promise<Answer<K>> {
  const is_change = OPERATIONS[operation].method !== 'GET';
  for (;;) {
    if (is_change && lost_since_ms.value !== null)
      throw new NoConnection('Not done: the connection to the server is lost. Try again once it is back.');
    try {
      return await berth.call(operation, input, options);
    } catch (error) {
      if (is_change && error instanceof BerthConnectionError)
        throw new NoConnection('The server did not answer. Check whether it is done before you repeat it.');
      if (!(error instanceof BerthError) || error.code !== 'SUDO_REQUIRED') throw error;
      await askForSudo();
    }
  }
}

/** An error, as text for the user. */
export function sayError(error: unknown): string {
  if (error instanceof BerthConnectionError) return 'The server does not answer.';
  if (error instanceof BerthError) return error.message;
  return error instanceof Error ? error.message : String(error);
}
