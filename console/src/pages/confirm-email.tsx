/** Confirms the account's first or new address with the token from a mail. The first address's mail can be sent again. */
import { call } from '../api.ts';
import { navigate, takeTokenOfLink } from '../router.ts';
import { user } from '../session.ts';
import { Field } from '../ui/field.tsx';
import { Form } from '../ui/form.tsx';
import { Section } from '../ui/page.tsx';
import { tell } from '../ui/toasts.tsx';
import { TokenPage } from './token-page.tsx';

export function ConfirmEmailPage() {
  const work = async (token: string) => {
    await call('confirmEmail', { body: { token } });
    user.value = await call('getMe', {});
    tell('good', 'Confirmed the address.');
    navigate('/account', { replace: true });
  };
  const email = user.value?.email ?? '';
  return (
    <>
      <TokenPage title="Confirm the address" verb="Confirm" token={takeTokenOfLink} work={work} />
      {user.value?.email_confirmed === false && <SendAgain email={email} />}
    </>
  );
}

function SendAgain({ email }: { readonly email: string }) {
  const work = async (form: FormData, element: HTMLFormElement) => {
    await call('changeEmail', { body: { email, password: String(form.get('password')) } });
    element.reset();
    tell('good', `A mail to ${email} has a new link.`);
  };
  return (
    <Section
      title="No mail?"
      lead={
        <>
          It went to {email}. If that is mistyped, <a href="/account">change it</a>.
        </>
      }
    >
      <Form class="stack narrow" verb="Send it again" work={work}>
        {() => (
          <Field
            label="Your password"
            name="password"
            type="password"
            autocomplete="current-password"
            required
          />
        )}
      </Form>
    </Section>
  );
}
