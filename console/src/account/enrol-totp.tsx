/** Adding an authenticator app: a name, then its QR code, then a code to show that it works. */
import { useState } from 'preact/hooks';
import type { AddMfaFactorResponse } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { Button } from '../ui/button.tsx';
import { Copyable } from '../ui/copy.tsx';
import { Dialog, DialogActions } from '../ui/dialog.tsx';
import { Failure } from '../ui/failure.tsx';
import { Field } from '../ui/field.tsx';
import { QrCode } from '../ui/qr-code.tsx';
import { useAction } from '../use-action.ts';

type Totp = Extract<AddMfaFactorResponse, { type: 'totp' }>;

interface Props {
  readonly onClose: () => void;
  readonly onConfirmed: (recovery_codes: readonly string[] | null) => Promise<void>;
}

export function EnrolTotp({ onClose, onConfirmed }: Props) {
  const [added, setAdded] = useState<Totp | null>(null);
  const add = useAction(async (name: string) => {
    const factor = await call('addMfaFactor', { body: { type: 'totp', name } });
    if (factor.type === 'totp') setAdded(factor);
  });
  const verify = useAction(async (code: string) => {
    const answer = await call('verifyMfaFactor', { path: { id: added?.id ?? '' }, body: { code } });
    onClose();
    await onConfirmed(answer.recovery_codes);
  });
  const action = added ? verify : add;
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    const given = new FormData(event.currentTarget as HTMLFormElement).get(added ? 'code' : 'name');
    void action.run(String(given).trim());
  };
  return (
    <Dialog title="Add an authenticator app" onClose={onClose}>
      <form onSubmit={submit}>
        <div class="dialog-body">
          {added ? (
            <>
              <p>Scan this with the app, then type the code that it shows.</p>
              <QrCode text={added.otpauth_url} label="QR code for the authenticator app" />
              <details>
                <summary>It cannot scan</summary>
                <Copyable text={added.secret} label="Copy the secret" />
              </details>
              <Field
                key="code"
                label="Code"
                name="code"
                inputMode="numeric"
                autocomplete="one-time-code"
                pattern="[0-9]{3} ?[0-9]{3}"
                title="Six digits"
                required
                autofocus
              />
            </>
          ) : (
            <Field
              key="name"
              label="Name"
              name="name"
              required
              maxLength={100}
              defaultValue="phone"
              autofocus
              hint="To tell it from others"
            />
          )}
          <Failure text={action.error} />
        </div>
        <DialogActions>
          <Button onClick={onClose}>Cancel</Button>
          <Button submit kind="primary" busy={action.busy}>
            {added ? 'Confirm' : 'Next'}
          </Button>
        </DialogActions>
      </form>
    </Dialog>
  );
}
