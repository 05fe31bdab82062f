/** A form, on a page or in a dialog: what is filled in goes to `work`; what went wrong stands above the button. */
import type { ComponentChildren } from 'preact';
import { type Action, useAction } from '../use-action.ts';
import { Button } from './button.tsx';
import { Dialog, DialogActions } from './dialog.tsx';
import { Failure } from './failure.tsx';

export type Issues = Action<[]>['issues'];
/** @param form what was filled in, by the fields' names @param element to empty it afterwards */
export type FormWork = (form: FormData, element: HTMLFormElement) => Promise<void>;

interface Props {
  readonly work: FormWork;
  readonly verb: string;
  /** With what is wrong with single fields, by their names. */
  readonly children: (issues: Issues) => ComponentChildren;
}

function useForm(work: FormWork, onDone?: () => void) {
  const action = useAction(work);
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const element = event.currentTarget as HTMLFormElement;
    if (await action.run(new FormData(element), element)) onDone?.();
  };
  return { ...action, submit };
}

interface FormProps extends Props {
  readonly class?: string;
  readonly primary?: boolean;
  readonly disabled?: boolean;
  /** Behind the button. */
  readonly aside?: ComponentChildren;
}

export function Form({ work, verb, children, primary = false, disabled = false, aside, ...rest }: FormProps) {
  const { submit, busy, error, issues } = useForm(work);
  return (
    <form class={rest.class ?? 'stack'} onSubmit={submit}>
      {children(issues)}
      <div class="form-end">
        <Failure text={error} />
        <Button submit kind={primary ? 'primary' : 'plain'} busy={busy} disabled={disabled}>
          {verb}
        </Button>
        {aside}
      </div>
    </form>
  );
}

interface DialogProps extends Props {
  readonly title: string;
  readonly onClose: () => void;
  readonly wide?: boolean;
  readonly danger?: boolean;
  readonly disabled?: boolean;
  /** What is done when `work` is; `onClose` unless given. */
  readonly onDone?: () => void;
}

export function FormDialog({ work, verb, title, onClose, onDone = onClose, children, ...rest }: DialogProps) {
  const { submit, busy, error, issues } = useForm(work, onDone);
  return (
    <Dialog title={title} onClose={onClose} wide={rest.wide ?? false}>
      <form onSubmit={submit}>
        <div class="dialog-body">{children(issues)}</div>
        <DialogActions>
          <Failure text={error} />
          <Button onClick={onClose}>Cancel</Button>
          <Button
            submit
            kind={rest.danger ? 'danger' : 'primary'}
            busy={busy}
            disabled={rest.disabled ?? false}
          >
            {verb}
          </Button>
        </DialogActions>
      </form>
    </Dialog>
  );
}
