/** Resets a forgotten password: requests the mail, and sets a new password with the token in it. */
import { useState } from 'preact/hooks';
import { EmailField, NewPasswordField, TokenField } from '../account/credential-fields.tsx';
import { navigate, takeTokenOfLink } from '../router.ts';
import { anonymous, ended } from '../session.ts';
import { Checkbox } from '../ui/field.tsx';
import { Form } from '../ui/form.tsx';
import { Gate } from '../ui/gate.tsx';

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
  const work = async (form: FormData) => {
    await anonymous.call('requestPasswordReset', { body: { email: String(form.get('email')).trim() } });
    onSent();
  };
  return (
    <Form verb="Send the mail" primary work={work}>
      {() => (
        <>
          <p>If the address has an account, a mail with a token goes there. It is good for an hour.</p>
          <EmailField />
        </>
      )}
    </Form>
  );
}

function SetPassword({ token }: { readonly token: string }) {
  const work = async (form: FormData) => {
    const said = (name: string) => String(form.get(name));
    const body = {
      token: said('token').trim(),
      new_password: said('new_password'),
      revoke_all: form.get('revoke_all') !== null,
    };
    await anonymous.call('confirmPasswordReset', { body });
    ended.value = 'The password is set. Log in with it.';
    navigate('/login', { replace: true });
  };
  return (
    <Form verb="Set the password" primary work={work}>
      {() => (
        <>
          <TokenField token={token} />
          <NewPasswordField label="New password" name="new_password" />
          <Checkbox
            label="Also remove API keys, SSH keys and second factors"
            name="revoke_all"
            hint="If somebody else may have been in the account. All sessions end in any case."
          />
        </>
      )}
    </Form>
  );
}
