/** The second step of a login: a code, a recovery code, or a passkey of the account. */
import { useState } from 'preact/hooks';
import type { LoginRequest } from '../../../client/src/generated.ts';
import { AppCodeField } from '../account/credential-fields.tsx';
import { passkeyProblem, usePasskey } from '../passkeys.ts';
import { anonymous, begin } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { Failure } from '../ui/failure.tsx';
import { Field } from '../ui/field.tsx';
import { Form } from '../ui/form.tsx';
import { Gate } from '../ui/gate.tsx';
import { useAction } from '../use-action.ts';
import type { FirstStep } from './login.tsx';

export function SecondFactor({ first, onBack }: { readonly first: FirstStep; readonly onBack: () => void }) {
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
        {() =>
          recovery ? (
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
          )
        }
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
