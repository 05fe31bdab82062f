import { call } from '../api.ts';
import { user } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { Failure } from '../ui/failure.tsx';
import { Field } from '../ui/field.tsx';
import { Section } from '../ui/page.tsx';
import { tell } from '../ui/toasts.tsx';
import { useAction } from '../use-action.ts';

export function ProfileForm() {
  const rename = useAction(async (form: HTMLFormElement) => {
    const name = String(new FormData(form).get('name')).trim();
    user.value = await call('changeMe', { body: name === '' ? {} : { name } });
    tell('good', 'Saved.');
  });
  const move = useAction(async (form: HTMLFormElement) => {
    const given = new FormData(form);
    const email = String(given.get('email')).trim();
    await call('changeEmail', { body: { email, password: String(given.get('password')) } });
    form.reset();
    tell('good', `A mail to ${email} has what confirms it.`);
  });
  const submit = (action: typeof rename) => (event: SubmitEvent) => {
    event.preventDefault();
    void action.run(event.currentTarget as HTMLFormElement);
  };
  return (
    <Section title="Name and address">
      <div class="panel columns">
        <form class="stack" onSubmit={submit(rename)}>
          <Field
            label="Name"
            name="name"
            maxLength={100}
            autocomplete="name"
            defaultValue={user.value?.name ?? ''}
            issue={rename.issues['name']}
          />
          <Failure text={rename.error} />
          <div>
            <Button submit busy={rename.busy}>
              Save
            </Button>
          </div>
        </form>
        <form class="stack" onSubmit={submit(move)}>
          <Field
            label="New e-mail"
            name="email"
            type="email"
            autocomplete="email"
            required
            issue={move.issues['email']}
          />
          <Field
            label="Your password"
            name="password"
            type="password"
            autocomplete="current-password"
            required
          />
          <Failure text={move.error} />
          <div>
            <Button submit busy={move.busy}>
              Change the address
            </Button>{' '}
            <a class="aside" href="/email">
              I have a token
            </a>
          </div>
        </form>
      </div>
    </Section>
  );
}
