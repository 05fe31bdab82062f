import { call } from '../api.ts';
import { user } from '../session.ts';
import { Field } from '../ui/field.tsx';
import { Form } from '../ui/form.tsx';
import { Section } from '../ui/page.tsx';
import { tell } from '../ui/toasts.tsx';
import { NewPasswordField } from './credential-fields.tsx';

export function PasswordForm() {
  const work = async (form: FormData, element: HTMLFormElement) => {
    const body = { current_password: String(form.get('current')), new_password: String(form.get('new')) };
    await call('changePassword', { body });
    element.reset();
    tell('good', 'The password is changed; your other sessions have ended.');
  };
  return (
    <Section title="Password" lead="Changing it ends all other sessions.">
      <Form class="panel columns" verb="Change the password" work={work}>
        {(issues) => (
          <>
            <input type="hidden" name="username" autocomplete="username" value={user.value?.email ?? ''} />
            <Field
              label="Present password"
              name="current"
              type="password"
              autocomplete="current-password"
              required
            />
            <NewPasswordField label="New password" name="new" issue={issues['new_password']} />
          </>
        )}
      </Form>
    </Section>
  );
}
