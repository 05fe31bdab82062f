/** Resets a forgotten password: requests the mail, and sets a new password with the token in it. */
import { useState } from 'preact/hooks';
import { EmailField, NewPasswordField, TokenField } from '../account/credential-fields.tsx';
import { navigate, takeTokenOfLink, tokenIn } from '../router.ts';
import { anonymous, ended } from '../session.ts';
import { sendsMail } from '../settings.ts';
import { Copyable } from '../ui/copy.tsx';
import { Checkbox } from '../ui/field.tsx';
import { Form } from '../ui/form.tsx';
import { Gate } from '../ui/gate.tsx';

export function PasswordResetPage() {
  const [token] = useState(takeTokenOfLink);
  const [step, setStep] = useState<'ask' | 'set'>(token === '' ? 'ask' : 'set');
  return (
    <Gate title="Forgotten password">
      {step === 'set' && <SetPassword token={token} />}
      {step === 'ask' && (sendsMail() ? <Ask onSent={() => setStep('set')} /> : <AskTheOperator />)}
      <p class="gate-links">
        <a href="/login">Back to the login</a>
        {step === 'ask' && (
          <button type="button" class="link" onClick={() => setStep('set')}>
            I have a link
          </button>
        )}
      </p>
    </Gate>
  );
}

/** Says the same for every address, so it does not tell whether an account exists. */
function AskTheOperator() {
  return (
    <>
      <p>This server sends no mail, so it cannot send you a link. Ask its operator to run this on it:</p>
      <Copyable text="berth user reset-password ADDRESS" label="Copy the command" />
      <p>It prints a new password.</p>
    </>
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
          <p>If the address has an account, a mail with a link goes there. The link works for an hour.</p>
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
      token: tokenIn(said('token')),
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
            hint="Choose this if somebody else may have used the account. All sessions end in any case."
          />
        </>
      )}
    </Form>
  );
}
