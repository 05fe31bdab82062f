/**
 * Loads the settings that the server shows before a login: whether anybody may create an account, whether the server
 * sends mail, and how people log in.
 */
import { signal } from '@preact/signals';

interface Settings {
  readonly signups: 'open' | 'closed';
  /** `files`: there is no mail server, and mails become files that only the operator can read. */
  readonly mail: 'smtp' | 'files';
  /** `off`: no passwords and no passkeys, only the OpenID provider. */
  readonly password_login: 'on' | 'off';
  readonly oidc: { readonly name: string; readonly login_url: string } | null;
}

const PATIENCE_MS = 5_000;
const UNKNOWN: Settings = { signups: 'closed', mail: 'smtp', password_login: 'on', oidc: null };

/** Null: not loaded yet. Pages wait for it, so that nothing moves when it arrives. */
export const settings = signal<Settings | null>(null);

export const sendsMail = () => settings.value?.mail !== 'files';
export const takesPasswords = () => settings.value?.password_login !== 'off';
export const signupsOpen = () => settings.value?.signups === 'open';

/** Never fails: a server that does not answer is reported elsewhere. */
export async function loadSettings(): Promise<void> {
  try {
    const answer = await fetch('/settings.json', { signal: AbortSignal.timeout(PATIENCE_MS) });
    settings.value = answer.ok ? ((await answer.json()) as Settings) : UNKNOWN;
  } catch {
    settings.value ??= UNKNOWN;
  }
}
