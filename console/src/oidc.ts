/**
 * The console's part of a login at the OpenID provider: the addresses where a login begins, and the message for its
 * outcome, which the server puts behind `#oidc=` when it sends the browser back.
 */
import { berth } from './api.ts';
import { keptInvitation } from './pages/mail-links.tsx';
import { ended, session } from './session.ts';
import { loadSettings, settings } from './settings.ts';
import { tell } from './ui/toasts.tsx';

const provider = () => settings.value?.oidc?.name ?? 'the provider';

/** The texts of the endings in src/control-plane/identity/oidc-routes.ts. */
const ENDINGS: Readonly<Record<string, () => string>> = {
  confirmed: () => 'Confirmed. For five minutes you are not asked again: now repeat what you did.',
  expired: () =>
    'This login was not begun in this browser, has been used, or took longer than ten minutes. Log in again.',
  refused: () => `${provider()} did not confirm who you are. Log in again, or ask its administrator.`,
  unreachable: () => `${provider()} does not answer. Try again shortly.`,
  failed: () =>
    `The answer of ${provider()} could not be used. Ask the operator, who finds the reason in the log.`,
  other_person: () =>
    `At ${provider()} you logged in as somebody else. Use the account that is linked to yours.`,
  not_repeated: () =>
    `${provider()} has not asked you to log in again, so nothing is confirmed. Ask its administrator: it must support max_age and send auth_time.`,
  session_ended: () => 'Your session has ended. Log in again.',
  too_many_sessions: () => 'You have too many sessions. End one where you are logged in.',
  too_many_requests: () => 'Too many attempts from your network. Wait a minute.',
  unverified_address: () =>
    `${provider()} does not say that your e-mail address is verified, so no account was opened. Ask its administrator.`,
  no_account: () =>
    'You have no account here. Ask the operator for a group, or an organisation for an invitation.',
  second_factor: () =>
    'The account with your address asks for a second factor of its own. Log in with it, remove the factor, and come back. If you cannot, ask the operator.',
  other_identity: () =>
    `The account with your address is linked to another account at ${provider()}. Ask the operator to unlink it.`,
};

/** The ending in the address, which is taken out of it; null: there is none. */
export function takeEnding(): string | null {
  const ending = new URLSearchParams(location.hash.slice(1)).get('oidc');
  if (ending !== null) history.replaceState(null, '', location.pathname + location.search);
  return ending;
}

/** On the login page, or as a toast for who is logged in. */
export async function showEnding(ending: string | null): Promise<void> {
  if (ending === null) return;
  // The text names the provider.
  if (settings.value === null) await loadSettings();
  const text = ENDINGS[ending]?.();
  if (text === undefined) return;
  if (session.value === 'in') tell(ending === 'confirmed' ? 'good' : 'bad', text);
  else ended.value = text;
}

/** Where a login begins; afterwards the browser is back at this page. */
export function loginUrl(): string | null {
  const url = settings.value?.oidc?.login_url;
  if (url === undefined) return null;
  const page = location.pathname === '/login' ? '/' : location.pathname + location.search;
  const here = keptInvitation() === '' ? page : '/invitation';
  return `${url}?return_to=${encodeURIComponent(here)}`;
}

/** Leaves this page for a new login at the provider. @throws BerthError */
export async function confirmAtProvider(): Promise<never> {
  const body = { return_to: location.pathname + location.search };
  const { url } = await berth.call('beginOidcSudo', { body });
  location.assign(url);
  // The browser leaves. Until then the dialog stays busy.
  return new Promise(() => undefined);
}
