/** The fields of credentials, equal in all forms so that password managers recognise them. */
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
  readonly issue?: string | undefined;
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
