/**
 * The token of an invitation's link, kept in memory over a login: it is a secret. On the way to the OpenID provider this page
 * ends; then the tab's own storage has the token until the browser is back.
 */
const CARRIED = 'berth-invitation';
let kept = takeCarried();

function takeCarried(): string {
  const carried = sessionStorage.getItem(CARRIED) ?? '';
  sessionStorage.removeItem(CARRIED);
  return carried;
}

export function keepInvitation(token: string): string {
  if (token !== '') kept = token;
  return token;
}

export function keptInvitation(): string {
  return kept;
}

/** Called when the browser leaves for the provider. */
export function carryInvitation(): void {
  if (kept !== '') sessionStorage.setItem(CARRIED, kept);
}

export function dropInvitation(): void {
  kept = '';
}
