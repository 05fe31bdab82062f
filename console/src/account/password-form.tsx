/** Changes the password of the account. */
import { call } from '../api.ts';
import { user } from '../session.ts';
import { Field } from '../ui/field.tsx';
import { Form } from '../ui/form.tsx';
import { Section } from '../ui/page.tsx';
import { tell } from '../ui/toasts.tsx';
import { NewPasswordField } from './credential-fields.tsx';

export function PasswordForm() {
  const work = async (form: FormData, element: HTMLFormElement) => {
    const said = (name: string) => String(form.get(name));
    const body = { current_password: said('current_password'), new_password: said('new_password') };
    await call('changePassword', { body });
    element.reset();
    tell('good', 'Changed the password. Your other sessions have ended.');
  };
  return (
    <Section title="Password" lead="Changing it ends all other sessions.">
      <Form class="panel columns" verb="Change the password" work={work}>
        {(issues) => (
          <>
            <input type="hidden" name="username" autocomplete="username" value={user.value?.email ?? ''} />
            <Field
              label="Current password"
              name="current_password"
              type="password"
              autocomplete="current-password"
              required
            />
            <NewPasswordField label="New password" name="new_password" issue={issues['new_password']} />
          </>
        )}
      </Form>
    </Section>
  );
}
