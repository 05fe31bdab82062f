/** Registration: with an invitation, or if the operator opened sign-ups. */
import { useState } from 'preact/hooks';
import { NewPasswordField } from '../account/credential-fields.tsx';
import { navigate, takeTokenOfLink } from '../router.ts';
import { anonymous, begin } from '../session.ts';
import { Field } from '../ui/field.tsx';
import { Form } from '../ui/form.tsx';
import { Gate } from '../ui/gate.tsx';
import { dropInvitation, keepInvitation, keptInvitation } from './invitation-token.ts';

export function RegisterPage() {
  const [token] = useState(() => keepInvitation(takeTokenOfLink()) || keptInvitation());
  const work = async (form: FormData) => {
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
    // An invited user has already joined: there is no further question.
    navigate('/', { replace: true });
  };
  return (
    <Gate title={token === '' ? 'Make an account' : 'You are invited'}>
      {token !== '' && (
        <p>Make an account with the address that the invitation was sent to, or log in if you have one.</p>
      )}
      <Form verb="Make the account" primary work={work}>
        {(issues) => (
          <>
            <Field
              label="E-mail"
              name="email"
              type="email"
              autocomplete="username"
              required
              autofocus
              issue={issues['email']}
            />
            <Field label="Name" name="name" autocomplete="name" maxLength={100} issue={issues['name']} />
            <NewPasswordField label="Password" name="password" issue={issues['password']} />
            <Field
              label="Invitation"
              name="invitation_token"
              defaultValue={token}
              autocomplete="off"
              spellcheck={false}
              hint="From the mail. Not needed where sign-ups are open."
            />
          </>
        )}
      </Form>
      <p class="gate-links">
        <a href="/login">Log in instead</a>
      </p>
    </Gate>
  );
}
