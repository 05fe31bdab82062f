/** A form on a page or in a dialog. `work` gets its values. Errors of fields stand at the fields, others above the button. */
import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { useAction } from '../use-action.ts';
import { Button } from './button.tsx';
import { Dialog, DialogActions } from './dialog.tsx';
import { Failure } from './failure.tsx';
import { FieldIssues } from './field.tsx';
import { failureOf, focusFirstIssue, type Issues, issuesOf, NO_ISSUES } from './validity.ts';

export type { Issues } from './validity.ts';
/** @param form the values by field name @param element to reset it afterwards */
export type FormWork = (form: FormData, element: HTMLFormElement) => Promise<void>;

interface Props {
  readonly work: FormWork;
  readonly verb: string;
  /** Includes the errors of single fields, by name. */
  readonly children: (issues: Issues) => ComponentChildren;
}

function useForm(work: FormWork, onDone?: () => void) {
  const form = useRef<HTMLFormElement>(null);
  const [issues, setIssues] = useState(NO_ISSUES);
  /** The issues of the last refusal. An edit makes others of them, and moves no focus. */
  const refused = useRef(issues);
  const refuse = (found: Issues) => {
    refused.current = found;
    setIssues(found);
  };
  const action = useAction(work, (error) => {
    const failed = failureOf(error, form.current);
    refuse(failed.issues);
    return failed.text;
  });
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const element = event.currentTarget as HTMLFormElement;
    const found = issuesOf(element);
    refuse(found);
    if (Object.keys(found).length > 0) return action.clear();
    if (await action.run(new FormData(element), element)) onDone?.();
  };
  // A field is right again as soon as it is edited; the next submit checks it.
  const edit = ({ target }: Event) => {
    const { name = '' } = target as Partial<HTMLInputElement>;
    setIssues((before) => (name in before ? without(before, name) : before));
  };
  useEffect(() => {
    if (refused.current === issues && form.current) focusFirstIssue(form.current);
  }, [issues]);
  // The fields show the issues (ui/validity.ts), not bubbles of the browser.
  return { ...action, issues, form: { ref: form, noValidate: true, onSubmit: submit, onInput: edit } };
}

function without(issues: Issues, name: string): Issues {
  return Object.fromEntries(Object.entries(issues).filter(([each]) => each !== name));
}

interface FormProps extends Props {
  readonly class?: string;
  readonly primary?: boolean;
  /** Why the form cannot be sent; shown beside its button. */
  readonly reason?: string | undefined;
  /** Shown after the button. */
  readonly aside?: ComponentChildren;
}

export function Form({ work, verb, children, primary = false, reason, aside, ...rest }: FormProps) {
  const { form, busy, error, issues } = useForm(work);
  return (
    <form {...form} class={rest.class ?? 'stack'}>
      <FieldIssues.Provider value={issues}>{children(issues)}</FieldIssues.Provider>
      <div class="form-end">
        <Failure text={error} />
        <Button submit kind={primary ? 'primary' : 'plain'} busy={busy} reason={reason}>
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
  /** Runs after `work`; default: `onClose`. */
  readonly onDone?: () => void;
}

/** Without an answer for this long, the user may close the dialog. */
const KEPT_MS = 30_000;

function useKept(busy: boolean): boolean {
  const [late, setLate] = useState(false);
  useEffect(() => {
    setLate(false);
    const timer = busy ? setTimeout(() => setLate(true), KEPT_MS) : undefined;
    return () => clearTimeout(timer);
  }, [busy]);
  return busy && !late;
}

export function FormDialog({ work, verb, title, onClose, onDone = onClose, children, ...rest }: DialogProps) {
  const { form, busy, error, issues } = useForm(work, onDone);
  const kept = useKept(busy);
  return (
    <Dialog title={title} onClose={onClose} wide={rest.wide ?? false} busy={kept}>
      <form {...form}>
        <div class="dialog-body">
          <FieldIssues.Provider value={issues}>{children(issues)}</FieldIssues.Provider>
        </div>
        <DialogActions>
          <Failure text={error} />
          <Button disabled={kept} onClick={onClose}>
            Cancel
          </Button>
          <Button submit kind={rest.danger ? 'danger' : 'primary'} busy={busy}>
            {verb}
          </Button>
        </DialogActions>
      </form>
    </Dialog>
  );
}
