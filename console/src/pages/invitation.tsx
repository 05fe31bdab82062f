/** Joining an organisation by the link of a mail, as somebody who has an account. */
import { useState } from 'preact/hooks';
import { call } from '../api.ts';
import { chooseOrganisation } from '../live/membership.ts';
import { navigate, takeTokenOfLink } from '../router.ts';
import { user } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { Failure } from '../ui/failure.tsx';
import { Field } from '../ui/field.tsx';
import { PageHead } from '../ui/page.tsx';
import { useAction } from '../use-action.ts';
import { dropInvitation, keepInvitation, keptInvitation } from './invitation-token.ts';

export function InvitationPage() {
  const [token] = useState(() => keepInvitation(takeTokenOfLink()) || keptInvitation());
  const action = useAction(async (given: string) => {
    const joined = await call('acceptInvitation', { body: { token: given } });
    dropInvitation();
    navigate('/', { replace: true });
    chooseOrganisation(joined.id);
  });
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const given = new FormData(event.currentTarget as HTMLFormElement).get('token');
    void action.run(String(given).trim());
  };
  return (
    <>
      <PageHead title="Invitation" lead={`You are logged in as ${user.value?.email ?? ''}.`} />
      <form class="stack narrow" onSubmit={submit}>
        <Field
          label="Token of the mail"
          name="token"
          defaultValue={token}
          autocomplete="off"
          spellcheck={false}
          required
        />
        <Failure text={action.error} />
        <div>
          <Button submit kind="primary" busy={action.busy}>
            Join the organisation
          </Button>
        </div>
      </form>
    </>
  );
}
