/** Name and address of the account. A new address must be confirmed. */
import { call } from '../api.ts';
import { user } from '../session.ts';
import { sendsMail } from '../settings.ts';
import { Field } from '../ui/field.tsx';
import { Form } from '../ui/form.tsx';
import { Section } from '../ui/page.tsx';
import { tell } from '../ui/toasts.tsx';

export function ProfileForm() {
  const rename = async (form: FormData) => {
    const name = String(form.get('name')).trim();
    user.value = await call('changeMe', { body: { name } });
    tell('good', 'Saved.');
  };
  const move = async (form: FormData, element: HTMLFormElement) => {
    const email = String(form.get('email')).trim();
    await call('changeEmail', { body: { email, password: String(form.get('password')) } });
    element.reset();
    tell(
      'good',
      sendsMail()
        ? `A mail to ${email} has a link. The address changes once you have opened it.`
        : `This server sends no mail. The mail with the link is a file on the server, in the folder mail/ of its data folder; its operator can pass it on.`,
    );
  };
  const token = (
    <a class="aside" href="/email">
      I have a confirmation link
    </a>
  );
  return (
    <Section title="Name and address">
      <div class="panel columns">
        <Form verb="Save" edits work={rename}>
          {(issues) => (
            <Field
              label="Name"
              name="name"
              required
              maxLength={100}
              autocomplete="name"
              defaultValue={user.value?.name ?? ''}
              issue={issues['name']}
            />
          )}
        </Form>
        {user.value?.password_login && (
          <Form verb="Change the address" aside={token} work={move}>
            {(issues) => (
              <>
                <Field
                  label="New e-mail"
                  name="email"
                  type="email"
                  autocomplete="email"
                  required
                  issue={issues['email']}
                />
                <Field
                  label="Your password"
                  name="password"
                  type="password"
                  autocomplete="current-password"
                  required
                />
              </>
            )}
          </Form>
        )}
      </div>
    </Section>
  );
}
