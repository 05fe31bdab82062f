import { call } from '../api.ts';
import { user } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { Failure } from '../ui/failure.tsx';
import { Field } from '../ui/field.tsx';
import { Section } from '../ui/page.tsx';
import { tell } from '../ui/toasts.tsx';
import { useAction } from '../use-action.ts';

export function PasswordForm() {
  const action = useAction(async (form: HTMLFormElement) => {
    const given = new FormData(form);
    const body = { current_password: String(given.get('current')), new_password: String(given.get('new')) };
    await call('changePassword', { body });
    form.reset();
    tell('good', 'The password is changed; your other sessions have ended.');
  });
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    void action.run(event.currentTarget as HTMLFormElement);
  };
  return (
    <Section title="Password" lead="Changing it ends all other sessions.">
      <form class="panel columns" onSubmit={submit}>
        <input type="hidden" name="username" autocomplete="username" value={user.value?.email ?? ''} />
        <Field
          label="Present password"
          name="current"
          type="password"
          autocomplete="current-password"
          required
        />
        <Field
          label="New password"
          name="new"
          type="password"
          autocomplete="new-password"
          minLength={12}
          maxLength={256}
          required
          hint="12 characters or more"
          issue={action.issues['new_password']}
        />
        <div class="whole">
          <Failure text={action.error} />
          <Button submit busy={action.busy}>
            Change the password
          </Button>
        </div>
      </form>
    </Section>
  );
}
