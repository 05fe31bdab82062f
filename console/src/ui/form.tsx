/**
 * Forms on pages and in dialogs, and the dialog that asks before an irreversible action. A form passes its values to
 * `work`. It shows an error of a field at that field, and other errors above the button.
 */
import type { ComponentChildren, RefObject } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { useAction } from '../use-action.ts';
import { Button } from './button.tsx';
import { Dialog, DialogActions } from './dialog.tsx';
import { Field, FieldIssues } from './field.tsx';
import { Failure } from './page.tsx';
import { failureOf, focusFirstIssue, type Issues, issuesOf, NO_ISSUES } from './validity.ts';

/** @param form the values by field name @param element to reset it afterwards */
type FormWork = (form: FormData, element: HTMLFormElement) => Promise<void>;

interface CommonFormProps {
  readonly work: FormWork;
  readonly verb: string;
  /** Its fields show their own issues. */
  readonly children: ComponentChildren;
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

interface FormProps extends CommonFormProps {
  readonly class?: string;
  readonly primary?: boolean;
  /** Why the form cannot be sent; shown beside its button. */
  readonly reason?: string | undefined;
  /** Its fields show what is saved, so it can be sent only once one of them is edited. */
  readonly edits?: boolean;
  /** Whether a field differs from what is saved; called when that changes. */
  readonly onEdited?: (is_edited: boolean) => void;
  /** Shown after the button. */
  readonly aside?: ComponentChildren;
}

export function Form({
  work,
  verb,
  children,
  primary = false,
  reason,
  aside,
  edits = false,
  onEdited,
  ...rest
}: FormProps) {
  const { form, busy, error, issues } = useForm(work);
  const is_edited = useEdited(form.ref, onEdited);
  const is_same = edits && !is_edited;
  return (
    <form {...form} class={rest.class ?? 'stack'}>
      <FieldIssues.Provider value={issues}>{children}</FieldIssues.Provider>
      <div class="form-end">
        <Failure text={error} />
        <Button
          submit
          kind={primary ? 'primary' : 'plain'}
          busy={busy}
          reason={reason ?? (is_same && !busy ? 'Nothing is changed yet.' : undefined)}
        >
          {verb}
        </Button>
        {aside}
      </div>
    </form>
  );
}

function useEdited(
  form: RefObject<HTMLFormElement | null>,
  onEdited?: (is_edited: boolean) => void,
): boolean {
  const [is_edited, setEdited] = useState(false);
  const look = () => {
    const now = form.current !== null && isEdited(form.current);
    if (now === is_edited) return;
    setEdited(now);
    onEdited?.(now);
  };
  const latest = useRef(look);
  latest.current = look;
  // After each rendering, because it may change what is saved.
  useEffect(() => latest.current());
  useEffect(() => {
    const element = form.current;
    const events = ['input', 'change', 'reset'] as const;
    // A reset changes the fields after its event.
    const listener = () => setTimeout(() => latest.current());
    for (const event of events) element?.addEventListener(event, listener);
    return () => {
      for (const event of events) element?.removeEventListener(event, listener);
    };
  }, [form]);
  return is_edited;
}

interface DialogProps extends CommonFormProps {
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
          <FieldIssues.Provider value={issues}>{children}</FieldIssues.Provider>
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

/** A pattern that only this text matches. */
function literally(text: string): string {
  return text.replace(/[\\^$.*+?()[\]{}|/]/g, '\\$&');
}

interface Props {
  readonly title: string;
  readonly verb: string;
  readonly children: ComponentChildren;
  readonly word?: string;
  readonly harmless?: boolean;
  readonly onClose: () => void;
  readonly work: (form: FormData) => Promise<void>;
}

/** Asks before an irreversible action; with `word`, the user must type that word. */
export function ConfirmDialog({ children, word, harmless = false, ...rest }: Props) {
  return (
    <FormDialog {...rest} danger={!harmless}>
      {children}
      {word !== undefined && (
        <Field
          label={`Type ${word} to confirm`}
          name="confirmation"
          required
          pattern={literally(word)}
          title={`Type exactly ${word}`}
          autocomplete="off"
          spellcheck={false}
          autofocus
        />
      )}
    </FormDialog>
  );
}

/** Whether a field of a form differs from its default, which is what is saved. */
function isEdited(form: HTMLFormElement): boolean {
  return [...form.elements].some((each) => {
    if (each instanceof HTMLSelectElement)
      return [...each.options].some(({ selected, defaultSelected }) => selected !== defaultSelected);
    if (each instanceof HTMLTextAreaElement) return each.value !== each.defaultValue;
    if (!(each instanceof HTMLInputElement)) return false;
    const has_mark = each.type === 'checkbox' || each.type === 'radio';
    return has_mark ? each.checked !== each.defaultChecked : each.value !== each.defaultValue;
  });
}
