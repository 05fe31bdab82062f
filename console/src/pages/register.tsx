/** The page that creates an account: with an invitation, or without one where sign-ups are open. */
import { useState } from 'preact/hooks';
import { NewPasswordField } from '../account/credentials.tsx';
import { navigate, takeTokenOfLink, tokenIn } from '../router.ts';
import { anonymous, begin } from '../session.ts';
import { signupsOpen, takesPasswords } from '../settings.ts';
import { Field } from '../ui/field.tsx';
import { Form } from '../ui/form.tsx';
import { Gate } from '../ui/page.tsx';
import { ProviderLogin } from './login.tsx';
import { dropInvitation, keepInvitation, keptInvitation } from './mail-links.tsx';

export function RegisterPage() {
  const [token] = useState(() => keepInvitation(takeTokenOfLink()) || keptInvitation());
  const work = async (form: FormData) => {
    const said = (name: string) => String(form.get(name) ?? '').trim();
    const invitation_token = tokenIn(said('invitation_token'));
    const body = {
      email: said('email'),
      password: String(form.get('password')),
      ...(said('name') === '' ? {} : { name: said('name') }),
      ...(invitation_token === '' ? {} : { invitation_token }),
    };
    begin(await anonymous.call('register', { body }));
    dropInvitation();
    // An invited user has already joined: there is no further question.
    navigate('/', { replace: true });
  };
  const invited = token !== '';
  const needs_invitation = !invited && !signupsOpen();
  if (!takesPasswords())
    return (
      <Gate title={invited ? 'You are invited' : 'Create an account'}>
        <p>
          {invited
            ? 'Log in with the invited address. Then you are asked whether you join.'
            : 'Log in with the invited address. Then open its link once more.'}
        </p>
        <ProviderLogin primary />
      </Gate>
    );
  return (
    <Gate title={invited ? 'You are invited' : 'Create an account'}>
      {invited && <p>Create an account with the invited address, or log in if you have one.</p>}
      {needs_invitation && <p>A new account needs an invitation. Open its link, or paste the link below.</p>}
      <Form verb="Create the account" primary work={work}>
        <Field label="E-mail" name="email" type="email" autocomplete="username" required autofocus />
        <Field
          label="Name"
          name="name"
          autocomplete="name"
          maxLength={100}
          hint="Optional: what others see beside your address"
        />
        <NewPasswordField label="Password" name="password" />
        {invited && <input type="hidden" name="invitation_token" value={token} />}
        {needs_invitation && (
          <Field
            label="Invitation link"
            name="invitation_token"
            autocomplete="off"
            spellcheck={false}
            required
            hint="Or only the token at its end: berth_mail_…"
          />
        )}
      </Form>
      <p class="gate-links">
        <a href="/login">Log in instead</a>
      </p>
    </Gate>
  );
}
