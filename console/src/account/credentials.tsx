/**
 * Form fields for passwords, codes, mail tokens and the account's address. All forms use the same fields, so that
 * password managers recognise them.
 *
 * `createPasskey` and `usePasskey` ask the browser for a passkey (Web Authentication Level 3, section 5.1). They pass
 * the server's options to the browser as JSON, and return the browser's response as JSON.
 */
import { Field } from '../ui/field.tsx';

export function TokenField({ token }: { readonly token: string }) {
  return (
    <Field
      label="Link or token of the mail"
      name="token"
      defaultValue={token}
      autocomplete="off"
      spellcheck={false}
      required
    />
  );
}

interface NewPasswordProps {
  readonly label: string;
  readonly name: string;
}

export function NewPasswordField(props: NewPasswordProps) {
  return (
    <Field
      {...props}
      type="password"
      autocomplete="new-password"
      minLength={12}
      maxLength={256}
      required
      hint="12 characters or more"
    />
  );
}

export function AppCodeField({ label }: { readonly label: string }) {
  return (
    <Field
      label={label}
      name="code"
      inputMode="numeric"
      autocomplete="one-time-code"
      pattern="[0-9]{3} ?[0-9]{3}"
      title="Six digits"
      required
      autofocus
    />
  );
}

/** The account's address: the first field. */
export function EmailField() {
  return (
    <Field
      label="E-mail"
      name="email"
      type="text"
      inputMode="email"
      autocomplete="username"
      required
      autofocus
    />
  );
}

/** Why passkeys cannot work on this page, or null. */
export function passkeyProblem(): string | null {
  if (!('PublicKeyCredential' in window) || !isSecureContext) return 'This browser cannot use passkeys here.';
  if (/^[0-9.]+$|^\[/.test(location.hostname)) {
    const there = `${location.protocol}//localhost${location.port === '' ? '' : `:${location.port}`}`;
    return `Passkeys belong to a host name, and this page is open at an address. On this machine, open ${there}.`;
  }
  return null;
}

export async function createPasskey(options: unknown): Promise<unknown> {
  const publicKey = PublicKeyCredential.parseCreationOptionsFromJSON(
    options as PublicKeyCredentialCreationOptionsJSON,
  );
  const made = await asked(() => navigator.credentials.create({ publicKey }));
  return (made as PublicKeyCredential).toJSON();
}

export async function usePasskey(options: unknown): Promise<unknown> {
  const publicKey = PublicKeyCredential.parseRequestOptionsFromJSON(
    options as PublicKeyCredentialRequestOptionsJSON,
  );
  const given = await asked(() => navigator.credentials.get({ publicKey }));
  return (given as PublicKeyCredential).toJSON();
}

async function asked(ask: () => Promise<Credential | null>): Promise<Credential> {
  try {
    const credential = await ask();
    if (credential) return credential;
  } catch (error) {
    const name = error instanceof DOMException ? error.name : '';
    if (name === 'InvalidStateError') throw new Error('This device has a passkey of this account already.');
    if (name !== 'NotAllowedError') throw error;
  }
  throw new Error('No passkey was used: you cancelled, or it took too long.');
}
