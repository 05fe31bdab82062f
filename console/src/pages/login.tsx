/**
 * The login page. A user logs in by password, then with a second factor if the account has one; by a passkey alone; or
 * at the OpenID provider.
 */
import { useState } from 'preact/hooks';
import { BerthError } from '../../../client/src/berth.ts';
import type { LoginByPasskeyRequest, LoginRequest } from '../../../client/src/generated.ts';
import { AppCodeField, EmailField, passkeyProblem, usePasskey } from '../account/credentials.tsx';
import { loginUrl } from '../oidc.ts';
import { partsOf, path } from '../router.ts';
import { anonymous, begin, ended } from '../session.ts';
import { settings, signupsOpen, takesPasswords } from '../settings.ts';
import { Button } from '../ui/button.tsx';
import { Field } from '../ui/field.tsx';
import { Form } from '../ui/form.tsx';
import { Failure, Gate } from '../ui/page.tsx';
import { useAction } from '../use-action.ts';
import { carryInvitation } from './mail-links.tsx';

/** The accepted address and password; the second step sends them again with a factor. */
type FirstStep = Pick<LoginRequest, 'email' | 'password'>;

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
      <EmailField />
      <Field label="Password" name="password" type="password" autocomplete="current-password" required />
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

/** The second step of a login: a code, a recovery code, or a passkey of the account. */
function SecondFactor({ first, onBack }: { readonly first: FirstStep; readonly onBack: () => void }) {
  const [recovery, setRecovery] = useState(false);
  const login = async (factor: Partial<LoginRequest>) =>
    begin(await anonymous.call('login', { body: { ...first, ...factor } }));
  const byCode = (form: FormData) => {
    const code = String(form.get('code')).trim();
    return login(recovery ? { recovery_code: code } : { totp_code: code });
  };
  const byPasskey = useAction(async () => {
    const options = await anonymous.call('passkeyOptions', { body: { email: first.email } });
    await login({ webauthn: (await usePasskey(options)) as LoginRequest['webauthn'] });
  });
  return (
    <Gate title="Second factor">
      <Form verb="Log in" primary work={byCode}>
        {recovery ? (
          <Field
            key="recovery"
            label="Recovery code"
            name="code"
            autocomplete="off"
            spellcheck={false}
            required
            autofocus
          />
        ) : (
          <AppCodeField key="totp" label="Code of your authenticator app" />
        )}
      </Form>
      <div class="stack or">
        {passkeyProblem() === null && (
          <Button busy={byPasskey.busy} onClick={() => void byPasskey.run()}>
            Use a passkey
          </Button>
        )}
        <Button onClick={() => setRecovery(!recovery)}>
          {recovery ? 'Use a code of the app' : 'Use a recovery code'}
        </Button>
        <Failure text={byPasskey.error} />
      </div>
      <p class="gate-links">
        <button type="button" class="link" onClick={onBack}>
          Use another account
        </button>
      </p>
    </Gate>
  );
}

/** The link to a login at the OpenID provider. */
export function ProviderLogin({ primary = false }: { readonly primary?: boolean }) {
  const url = loginUrl();
  if (url === null) return null;
  return (
    <a class={`button wide ${primary ? 'primary' : 'plain'}`} href={url} onClick={carryInvitation}>
      <span class="button-label">Log in with {settings.value?.oidc?.name}</span>
    </a>
  );
}
