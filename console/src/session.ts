/**
 * Holds the session of the logged-in user. Only this module has the bearer token: it is neither in storage nor in the
 * page. A reload resumes the session with the refresh cookie, which scripts cannot read and other sites cannot send.
 *
 *   unknown ── refreshed ──▶ in ── logout, or refused ──▶ out ── login ──▶ in
 *      ├── refused ──▶ out
 *      └── no answer ──▶ unreachable ── an answer ──▶ in or out
 *
 * Tabs tell each other of logins (by the user's id) and logouts. Calls that need the user's password wait here
 * (`askForSudo`) until ui/sudo-dialog.tsx is answered.
 */
import { signal } from '@preact/signals';
import { Berth, BerthError } from '../../client/src/berth.ts';
import type { SessionResponse, User } from '../../client/src/generated.ts';
import { loadSettings } from './settings.ts';

type State = 'unknown' | 'out' | 'in' | 'unreachable';

export const session = signal<State>('unknown');
export const user = signal<User | null>(null);
/** Why the session ended. */
export const ended = signal<string | null>(null);

let token: string | null = null;
let renew_at_ms = 0;
let renewing: Promise<boolean> | null = null;

/** A token with less time than this is renewed. */
const MARGIN_MS = 120_000;

/** A client without a token, which never retries. */
export const anonymous = new Berth({ url: location.origin, retries: 0 });

const tabs = typeof BroadcastChannel === 'undefined' ? null : new BroadcastChannel('berth-session');
tabs?.addEventListener('message', ({ data }) => {
  if (data === 'out' && session.value === 'in') forget('You have logged out in another tab.');
  if (typeof data !== 'string' || !data.startsWith('usr_')) return;
  if (session.value === 'out') void resumeSession();
  // The cookie belongs to another user now. No data of the previous user may stay on this page.
  if (session.value === 'in' && data !== user.value?.id) location.reload();
});

export function tokenNow(): string | null {
  return token;
}

export function isAboutToExpire(): boolean {
  return token !== null && Date.now() > renew_at_ms;
}

function keep(next: { readonly session_token: string; readonly expires_at: string }): void {
  token = next.session_token;
  const at_ms = Date.parse(next.expires_at) - MARGIN_MS;
  // If this clock is ahead, a new token looks expired. Then the token is used until the server rejects it.
  renew_at_ms = at_ms > Date.now() ? at_ms : Number.POSITIVE_INFINITY;
}

/** Returns false if the session has ended. Concurrent calls share one request. @throws the error of a failed request */
export function renew(): Promise<boolean> {
  renewing ??= anonymous
    .call('refresh', { body: {} })
    .then((next) => {
      keep(next);
      return true;
    })
    .catch((error: unknown) => {
      if (error instanceof BerthError && error.status === 401) return false;
      throw error;
    })
    .finally(() => {
      renewing = null;
    });
  return renewing;
}

/** Resumes the session of the refresh cookie, if there is one. */
export async function resumeSession(): Promise<void> {
  void loadSettings();
  try {
    if (!(await renew())) {
      session.value = 'out';
      return;
    }
    user.value = await new Berth({ url: location.origin, token: token ?? '' }).call('getMe', {});
    session.value = 'in';
    // After a login at the provider no other tab knows.
    tabs?.postMessage(user.value.id);
  } catch (error) {
    // The session was revoked after the renewal.
    if (error instanceof BerthError && error.status === 401) forget('Your session has ended. Log in again.');
    else session.value = 'unreachable';
  }
}

/** Called after any kind of login. */
export function begin(opened: SessionResponse): void {
  keep(opened);
  user.value = opened.user;
  ended.value = null;
  session.value = 'in';
  tabs?.postMessage(opened.user.id);
}

export function forget(why: string | null): void {
  token = null;
  // A waiting request of this user must not run for the next user.
  answerSudo(false);
  user.value = null;
  ended.value = why;
  session.value = 'out';
}

/** Ends the session on the server. If that fails, the user stays logged in. @throws BerthError, BerthConnectionError */
export async function logout(): Promise<void> {
  // Renewed first: an expired token could not end the session, and the cookie would resume it.
  if (await renew())
    await new Berth({ url: location.origin, token: token ?? '' }).call('logout', { body: {} });
  forget(null);
  tabs?.postMessage('out');
}

/** The user closed the dialog. The action is cancelled, which is not a failure. */
export class SudoRefused extends Error {
  override readonly name = 'SudoRefused';
}

interface Waiting {
  readonly granted: () => void;
  readonly refused: (error: SudoRefused) => void;
}

/**
 * Requests for the user's password. Calls that need it wait here. The dialog (ui/sudo-dialog.tsx) is open while any call waits,
 * and answers all of them together.
 */
export const sudo_waiting = signal<readonly Waiting[]>([]);

export function askForSudo(): Promise<void> {
  return new Promise((granted, refused) => {
    sudo_waiting.value = [...sudo_waiting.value, { granted, refused }];
  });
}

export function answerSudo(granted: boolean): void {
  const waiting = sudo_waiting.value;
  sudo_waiting.value = [];
  for (const each of waiting) {
    if (granted) each.granted();
    else each.refused(new SudoRefused('Not done: the password was not given.'));
  }
}
