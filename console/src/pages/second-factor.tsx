/** The second step of a login: a code, a recovery code, or a passkey of the account. */
import { useState } from 'preact/hooks';
import type { LoginRequest } from '../../../client/src/generated.ts';
import { passkeyProblem, usePasskey } from '../passkeys.ts';
import { anonymous, begin } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { Failure } from '../ui/failure.tsx';
import { Field } from '../ui/field.tsx';
import { Gate } from '../ui/gate.tsx';
import { useAction } from '../use-action.ts';
import type { FirstStep } from './login.tsx';

export function SecondFactor({ first, onBack }: { readonly first: FirstStep; readonly onBack: () => void }) {
  const [recovery, setRecovery] = useState(false);
  const login = async (factor: Partial<LoginRequest>) =>
    begin(await anonymous.call('login', { body: { ...first, ...factor } }));
  const byCode = useAction(async (code: string) =>
    login(recovery ? { recovery_code: code } : { totp_code: code }),
  );
  const byPasskey = useAction(async () => {
    const options = await anonymous.call('passkeyOptions', { body: { email: first.email } });
    await login({ webauthn: (await usePasskey(options)) as LoginRequest['webauthn'] });
  });
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const code = new FormData(event.currentTarget as HTMLFormElement).get('code');
    void byCode.run(String(code).trim());
  };
  return (
    <Gate title="Second factor">
      <form class="stack" onSubmit={submit}>
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
          <Field
            key="totp"
            label="Code of your authenticator app"
            name="code"
            inputMode="numeric"
            autocomplete="one-time-code"
            pattern="[0-9]{3} ?[0-9]{3}"
            title="Six digits"
            required
            autofocus
          />
        )}
        <Failure text={byCode.error} />
        <Button submit kind="primary" busy={byCode.busy}>
          Log in
        </Button>
      </form>
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
          Log in as somebody else
        </button>
      </p>
    </Gate>
  );
}
