/** The link to a login at the OpenID provider. */
import { loginUrl } from '../oidc.ts';
import { carryInvitation } from '../pages/invitation-token.ts';
import { settings } from '../settings.ts';

export function ProviderLogin({ primary = false }: { readonly primary?: boolean }) {
  const url = loginUrl();
  if (url === null) return null;
  return (
    <a class={`button wide ${primary ? 'primary' : 'plain'}`} href={url} onClick={carryInvitation}>
      <span class="button-label">Log in with {settings.value?.oidc?.name}</span>
    </a>
  );
}
