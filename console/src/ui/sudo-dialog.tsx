/** Asks for the password again when a call needs it, then lets that call go on. */
import { useRef } from 'preact/hooks';
import { berth } from '../api.ts';
import { user } from '../session.ts';
import { answerSudo, sudo_waiting } from '../sudo-request.ts';
import { useAction } from '../use-action.ts';
import { Button } from './button.tsx';
import { Dialog, DialogActions } from './dialog.tsx';
import { Failure } from './failure.tsx';
import { Field } from './field.tsx';

export function SudoDialog() {
  return sudo_waiting.value.length === 0 ? null : <Ask />;
}

function Ask() {
  const password = useRef('');
  const action = useAction(async () => {
    await berth.call('grantSudo', { body: { password: password.current } });
  });
  const submit = async (event: Event) => {
    event.preventDefault();
    if (await action.run()) answerSudo(true);
  };
  return (
    <Dialog title="Confirm it is you" onClose={() => answerSudo(false)}>
      <form onSubmit={submit}>
        <div class="dialog-body">
          <p>This is destructive, so Berth asks for your password. It is good for five minutes.</p>
          <input type="hidden" name="username" autocomplete="username" value={user.value?.email ?? ''} />
          <Field
            label="Password"
            type="password"
            autocomplete="current-password"
            required
            autofocus
            onInput={(event) => {
              password.current = event.currentTarget.value;
            }}
          />
          <Failure text={action.error} />
        </div>
        <DialogActions>
          <Button onClick={() => answerSudo(false)}>Cancel</Button>
          <Button submit kind="primary" busy={action.busy}>
            Continue
          </Button>
        </DialogActions>
      </form>
    </Dialog>
  );
}
