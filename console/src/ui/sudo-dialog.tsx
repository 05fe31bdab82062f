/**
 * The dialog that asks for the user's password again when a call needs it; then the call continues. A user without a
 * password logs in at the OpenID provider again instead, and then repeats the action.
 */
import { berth } from '../api.ts';
import { confirmAtProvider } from '../oidc.ts';
import { answerSudo, sudo_waiting, user } from '../session.ts';
import { settings } from '../settings.ts';
import { attempt } from '../use-action.ts';
import { Button } from './button.tsx';
import { Field } from './field.tsx';
import { FormDialog } from './form.tsx';

export function SudoDialog() {
  if (sudo_waiting.value.length === 0) return null;
  if (user.value?.password_login !== true) return <ProviderDialog />;
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
      {user.value?.oidc_login && (
        <p>
          <Button onClick={() => void attempt(confirmAtProvider)}>Or log in at {providerName()}</Button>
        </p>
      )}
    </FormDialog>
  );
}

const providerName = () => settings.value?.oidc?.name ?? 'the provider';

function ProviderDialog() {
  return (
    <FormDialog
      title="Confirm it is you"
      verb={`Continue at ${providerName()}`}
      onClose={() => answerSudo(false)}
      work={confirmAtProvider}
    >
      <p>
        This needs a new login at {providerName()}. You then come back to this page, and repeat what you did.
        You are not asked again for five minutes.
      </p>
    </FormDialog>
  );
}
