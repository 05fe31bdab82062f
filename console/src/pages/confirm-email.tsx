/** Confirming a new address by the token sent there. */
import { useState } from 'preact/hooks';
import { call } from '../api.ts';
import { navigate, takeTokenOfLink } from '../router.ts';
import { user } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { Failure } from '../ui/failure.tsx';
import { Field } from '../ui/field.tsx';
import { PageHead } from '../ui/page.tsx';
import { tell } from '../ui/toasts.tsx';
import { useAction } from '../use-action.ts';

export function ConfirmEmailPage() {
  const [token] = useState(takeTokenOfLink);
  const action = useAction(async (given: string) => {
    await call('confirmEmail', { body: { token: given } });
    user.value = await call('getMe', {});
    tell('good', 'The address is changed.');
    navigate('/account', { replace: true });
  });
  const submit = (event: SubmitEvent) => {
    event.preventDefault();
    void action.run(String(new FormData(event.currentTarget as HTMLFormElement).get('token')).trim());
  };
  return (
    <>
      <PageHead title="Confirm the new address" />
      <form class="stack narrow" onSubmit={submit}>
        <Field
          label="Token of the mail"
          name="token"
          defaultValue={token}
          autocomplete="off"
          spellcheck={false}
          required
        />
        <Failure text={action.error} />
        <div>
          <Button submit kind="primary" busy={action.busy}>
            Confirm
          </Button>
        </div>
      </form>
    </>
  );
}
