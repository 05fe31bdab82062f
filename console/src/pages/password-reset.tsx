/** A forgotten password: asking for the mail, and setting a new one by the token in it. */
import { useState } from 'preact/hooks';
import { navigate, takeTokenOfLink } from '../router.ts';
import { anonymous, ended } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { Failure } from '../ui/failure.tsx';
import { Field } from '../ui/field.tsx';
import { Gate } from '../ui/gate.tsx';
import { useAction } from '../use-action.ts';

export function PasswordResetPage() {
  const [token] = useState(takeTokenOfLink);
  const [step, setStep] = useState<'ask' | 'set'>(token === '' ? 'ask' : 'set');
  return (
    <Gate title="Forgotten password">
      {step === 'ask' ? <Ask onSent={() => setStep('set')} /> : <SetPassword token={token} />}
      <p class="gate-links">
        <a href="/login">Back to the login</a>
        {step === 'ask' && (
          <button type="button" class="link" onClick={() => setStep('set')}>
            I have a token
          </button>
        )}
      </p>
    </Gate>
  );
}

function Ask({ onSent }: { readonly onSent: () => void }) {
  const action = useAction(async (email: string) => {
    await anonymous.call('requestPasswordReset', { body: { email } });
    onSent();
  });
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    void action.run(String(new FormData(event.currentTarget as HTMLFormElement).get('email')));
  };
  return (
    <form class="stack" onSubmit={submit}>
      <p>If the address has an account, a mail with a token goes there. It is good for an hour.</p>
      <Field label="E-mail" name="email" type="text" inputMode="email" autocomplete="username" required />
      <Failure text={action.error} />
      <Button submit kind="primary" busy={action.busy}>
        Send the mail
      </Button>
    </form>
  );
}

function SetPassword({ token }: { readonly token: string }) {
  const action = useAction(async (form: FormData) => {
    const body = { token: String(form.get('token')).trim(), new_password: String(form.get('password')) };
    await anonymous.call('confirmPasswordReset', { body });
    ended.value = 'The password is set. Log in with it.';
    navigate('/login', { replace: true });
  });
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    void action.run(new FormData(event.currentTarget as HTMLFormElement));
  };
  return (
    <form class="stack" onSubmit={submit}>
      <Field
        label="Token of the mail"
        name="token"
        defaultValue={token}
        autocomplete="off"
        spellcheck={false}
        required
      />
      <Field
        label="New password"
        name="password"
        type="password"
        autocomplete="new-password"
        minLength={12}
        maxLength={256}
        required
        hint="12 characters or more"
      />
      <Failure text={action.error} />
      <Button submit kind="primary" busy={action.busy}>
        Set the password
      </Button>
    </form>
  );
}
