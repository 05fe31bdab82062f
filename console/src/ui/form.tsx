/** A form on a page or in a dialog. `work` gets its values; an error stands above the button. */
import type { ComponentChildren } from 'preact';
import { useEffect, useRef, useState } from 'preact/hooks';
import { BerthError } from '../../../client/src/berth.ts';
import { sayError } from '../api.ts';
import { type Action, useAction } from '../use-action.ts';
import { Button } from './button.tsx';
import { Dialog, DialogActions } from './dialog.tsx';
import { Failure } from './failure.tsx';

export type Issues = Action<[]>['issues'];
/** @param form the values by field name @param element to reset it afterwards */
export type FormWork = (form: FormData, element: HTMLFormElement) => Promise<void>;

interface Props {
  readonly work: FormWork;
  readonly verb: string;
  /** Includes the errors of single fields, by name. */
  readonly children: (issues: Issues) => ComponentChildren;
}

/** The API's errors use field names; the form shows labels. */
function sayByLabels(error: unknown, form: HTMLFormElement | null): string {
  if (!(error instanceof BerthError) || error.code !== 'INVALID_REQUEST' || error.details.length === 0)
    return sayError(error);
  return error.details.map(({ field, issue }) => `${labelOf(field, form) ?? field}: ${issue}`).join('. ');
}

/** The form's field for an error's path: `last` for `generations_keep.last`, `allowed_cidrs` for `allowed_cidrs.0`. */
function labelOf(name: string, form: HTMLFormElement | null): string | undefined {
  for (const part of name.split('.').toReversed()) {
    const field = form?.elements.namedItem(part);
    if (field && 'labels' in field) return (field as HTMLInputElement).labels?.[0]?.textContent;
  }
  return undefined;
}

/** The browser shows a field's error only where it is visible: in a folded part, a click would do nothing. */
function unfold(event: Event): void {
  (event.target as Element).closest('details')?.setAttribute('open', '');
}

function useForm(work: FormWork, onDone?: () => void) {
  const form = useRef<HTMLFormElement>(null);
  const action = useAction(work, (error) => sayByLabels(error, form.current));
  const submit = async (event: SubmitEvent) => {
    event.preventDefault();
    const element = event.currentTarget as HTMLFormElement;
    if (await action.run(new FormData(element), element)) onDone?.();
  };
  return { ...action, form: { ref: form, onSubmit: submit, onInvalidCapture: unfold } };
}

interface FormProps extends Props {
  readonly class?: string;
  readonly primary?: boolean;
  readonly disabled?: boolean;
  /** Shown after the button. */
  readonly aside?: ComponentChildren;
}

export function Form({ work, verb, children, primary = false, disabled = false, aside, ...rest }: FormProps) {
  const { form, busy, error, issues } = useForm(work);
  return (
    <form {...form} class={rest.class ?? 'stack'}>
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
        <div class="dialog-body">{children(issues)}</div>
        <DialogActions>
          <Failure text={error} />
          <Button disabled={kept} onClick={onClose}>
            Cancel
          </Button>
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
