/** The token of an invitation's link, kept in memory over a login: it is a secret, so no storage sees it. */
let kept = '';

export function keepInvitation(token: string): string {
  if (token !== '') kept = token;
  return token;
}

export function keptInvitation(): string {
  return kept;
}

export function dropInvitation(): void {
  kept = '';
}
