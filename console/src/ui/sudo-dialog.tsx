/** Asks for the password again when a call needs it; then the call continues. */
import { berth } from '../api.ts';
import { user } from '../session.ts';
import { answerSudo, sudo_waiting } from '../sudo-request.ts';
import { Field } from './field.tsx';
import { FormDialog } from './form.tsx';

export function SudoDialog() {
  if (sudo_waiting.value.length === 0) return null;
  return (
    <FormDialog
      title="Confirm it is you"
      verb="Continue"
      onClose={() => answerSudo(false)}
      onDone={() => answerSudo(true)}
      work={async (form) => {
        await berth.call('grantSudo', { body: { password: String(form.get('password')) } });
      }}
    >
      {() => (
        <>
          <p>This needs your password. You are not asked again for five minutes.</p>
          <input type="hidden" name="username" autocomplete="username" value={user.value?.email ?? ''} />
          <Field
            label="Password"
            name="password"
            type="password"
            autocomplete="current-password"
            required
            autofocus
          />
        </>
      )}
    </FormDialog>
  );
}
