/** Making an account: with an invitation, or where the operator lets everybody. */
import { useState } from 'preact/hooks';
import { takeTokenOfLink } from '../router.ts';
import { anonymous, begin } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { Failure } from '../ui/failure.tsx';
import { Field } from '../ui/field.tsx';
import { Gate } from '../ui/gate.tsx';
import { useAction } from '../use-action.ts';
import { dropInvitation, keepInvitation, keptInvitation } from './invitation-token.ts';

export function RegisterPage() {
  const [token] = useState(() => keepInvitation(takeTokenOfLink()) || keptInvitation());
  const action = useAction(async (form: FormData) => {
    const said = (name: string) => String(form.get(name) ?? '').trim();
    const invitation_token = said('invitation_token');
    const body = {
      email: said('email'),
      password: String(form.get('password')),
      ...(said('name') === '' ? {} : { name: said('name') }),
      ...(invitation_token === '' ? {} : { invitation_token }),
    };
    begin(await anonymous.call('register', { body }));
    dropInvitation();
  });
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    void action.run(new FormData(event.currentTarget as HTMLFormElement));
  };
  const { issues } = action;
  return (
    <Gate title={token === '' ? 'Make an account' : 'You are invited'}>
      {token !== '' && (
        <p>Make an account with the address that the invitation was sent to, or log in if you have one.</p>
      )}
      <form class="stack" onSubmit={submit}>
        <Field
          label="E-mail"
          name="email"
          type="email"
          autocomplete="username"
          required
          issue={issues['email']}
        />
        <Field label="Name" name="name" autocomplete="name" maxLength={100} issue={issues['name']} />
        <Field
          label="Password"
          name="password"
          type="password"
          autocomplete="new-password"
          minLength={12}
          maxLength={256}
          required
          hint="12 characters or more"
          issue={issues['password']}
        />
        <Field
          label="Invitation"
          name="invitation_token"
          defaultValue={token}
          autocomplete="off"
          spellcheck={false}
          hint="From the mail. Not needed where sign-ups are open."
        />
        <Failure text={action.error} />
        <Button submit kind="primary" busy={action.busy}>
          Make the account
        </Button>
      </form>
      <p class="gate-links">
        <a href="/login">Log in instead</a>
      </p>
    </Gate>
  );
}
