/** Logging in: by password, then a second factor if the account has one; by a passkey alone; or at the OpenID provider. */

import { useState } from 'preact/hooks';
import { BerthError } from '../../../client/src/berth.ts';
import type { LoginByPasskeyRequest, LoginRequest } from '../../../client/src/generated.ts';
import { EmailField } from '../account/credential-fields.tsx';
import { passkeyProblem, usePasskey } from '../passkeys.ts';
import { partsOf, path } from '../router.ts';
import { anonymous, begin, ended } from '../session.ts';
import { signupsOpen, takesPasswords } from '../settings.ts';
import { Button } from '../ui/button.tsx';
import { Failure } from '../ui/failure.tsx';
import { Field } from '../ui/field.tsx';
import { Form } from '../ui/form.tsx';
import { Gate } from '../ui/gate.tsx';
import { ProviderLogin } from '../ui/provider-login.tsx';
import { useAction } from '../use-action.ts';
import { SecondFactor } from './second-factor.tsx';

/** The accepted address and password; the second step sends them again with a factor. */
export type FirstStep = Pick<LoginRequest, 'email' | 'password'>;

export function LoginPage() {
  const [first, setFirst] = useState<FirstStep | null>(null);
  if (first) return <SecondFactor first={first} onBack={() => setFirst(null)} />;
  return (
    <Gate title="Log in">
      {ended.value !== null && (
        <p class="notice" role="status">
          {ended.value}
        </p>
      )}
      {partsOf(path.value)[0] === 'email' && <p class="notice">Log in to confirm your address.</p>}
      {partsOf(path.value)[0] === 'device' && (
        <p class="notice">Log in here first. Then confirm the login of the program.</p>
      )}
      <p class="dim">Berth runs Linux machines that you can stop without losing a file.</p>
      {takesPasswords() ? (
        <>
          <PasswordForm onFactorNeeded={setFirst} />
          <div class="stack or">
            <ProviderLogin />
            <Passkey />
          </div>
          <p class="gate-links">
            <a href="/password-reset">Forgotten password</a>
            <a href="/register">{signupsOpen() ? 'Create an account' : 'I have an invitation'}</a>
          </p>
        </>
      ) : (
        <ProviderLogin primary />
      )}
    </Gate>
  );
}

function PasswordForm({ onFactorNeeded }: { readonly onFactorNeeded: (first: FirstStep) => void }) {
  const work = async (form: FormData) => {
    const first = { email: String(form.get('email')).trim(), password: String(form.get('password')) };
    try {
      begin(await anonymous.call('login', { body: first }));
    } catch (error) {
      if (!(error instanceof BerthError) || error.code !== 'MFA_REQUIRED') throw error;
      onFactorNeeded(first);
    }
  };
  return (
    <Form verb="Log in" primary work={work}>
      {() => (
        <>
          <EmailField />
          <Field label="Password" name="password" type="password" autocomplete="current-password" required />
        </>
      )}
    </Form>
  );
}

function Passkey() {
  const problem = passkeyProblem();
  const action = useAction(async () => {
    const answer = await usePasskey(await anonymous.call('passkeyOptions', { body: {} }));
    begin(await anonymous.call('loginByPasskey', { body: answer as LoginByPasskeyRequest }));
  });
  return (
    <>
      <Button busy={action.busy} disabled={problem !== null} onClick={() => void action.run()}>
        Log in with a passkey
      </Button>
      {problem !== null && <p class="hint">{problem}</p>}
      <Failure text={action.error} />
    </>
  );
}
