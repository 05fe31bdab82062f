/** Joins an organisation by a mail's link, for a user with an account. */
import { call } from '../api.ts';
import { chooseOrganisation } from '../live/membership.ts';
import { navigate, takeTokenOfLink } from '../router.ts';
import { user } from '../session.ts';
import { dropInvitation, keepInvitation, keptInvitation } from './invitation-token.ts';
import { TokenPage } from './token-page.tsx';

export function InvitationPage() {
  const work = async (token: string) => {
    const joined = await call('acceptInvitation', { body: { token } });
    dropInvitation();
    navigate('/', { replace: true });
    chooseOrganisation(joined.id);
  };
  return (
    <TokenPage
      title="Invitation"
      lead={`You are logged in as ${user.value?.email ?? ''}.`}
      verb="Join the organisation"
      token={() => keepInvitation(takeTokenOfLink()) || keptInvitation()}
      work={work}
    />
  );
}
