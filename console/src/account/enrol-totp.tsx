/** Adds an authenticator app in three steps: a name, the QR code, and a code that proves that it works. */
import { useState } from 'preact/hooks';
import type { AddMfaFactorResponse } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { Copyable } from '../ui/copy.tsx';
import { Field } from '../ui/field.tsx';
import { FormDialog } from '../ui/form.tsx';
import { QrCode } from '../ui/qr-code.tsx';
import { AppCodeField } from './credential-fields.tsx';

type Totp = Extract<AddMfaFactorResponse, { type: 'totp' }>;

interface Props {
  readonly onClose: () => void;
  readonly onConfirmed: (recovery_codes: readonly string[] | null) => Promise<void>;
}

export function EnrolTotp({ onClose, onConfirmed }: Props) {
  const [added, setAdded] = useState<Totp | null>(null);
  const add = async (form: FormData) => {
    const name = String(form.get('name')).trim();
    const factor = await call('addMfaFactor', { body: { type: 'totp', name } });
    if (factor.type === 'totp') setAdded(factor);
  };
  const verify = async ({ id }: Totp, form: FormData) => {
    const code = String(form.get('code')).trim();
    const { recovery_codes } = await call('verifyMfaFactor', { path: { id }, body: { code } });
    onClose();
    await onConfirmed(recovery_codes);
  };
  return (
    <FormDialog
      title="Add an authenticator app"
      verb={added ? 'Confirm' : 'Next'}
      onClose={onClose}
      // Each step decides itself whether it closes the dialog.
      onDone={() => undefined}
      work={(form) => (added ? verify(added, form) : add(form))}
    >
      {() => (added ? <Scan key="scan" totp={added} /> : <Name key="name" />)}
    </FormDialog>
  );
}

function Name() {
  return (
    <Field
      label="Name"
      name="name"
      required
      maxLength={100}
      defaultValue="phone"
      autofocus
      hint="Names this app among your factors"
    />
  );
}

function Scan({ totp }: { readonly totp: Totp }) {
  return (
    <>
      <p>Scan this with the app, then type the code that it shows.</p>
      <QrCode text={totp.otpauth_url} label="QR code for the authenticator app" />
      <details>
        <summary>Type the secret instead</summary>
        <Copyable text={totp.secret} label="Copy the secret" />
      </details>
      <AppCodeField label="Code" />
    </>
  );
}
