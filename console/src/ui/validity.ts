/**
 * Finds the fields of a form that are wrong, and words what is wrong: for the browser's own validation before the form
 * is sent, and for errors of the API afterwards. The console's words replace those of the browser where it has any.
 */
import { BerthError } from '../../../client/src/berth.ts';
import { sayError } from '../api.ts';

/** Texts by the name of the field. */
export type Issues = Readonly<Record<string, string>>;
export const NO_ISSUES: Issues = {};

type Control = HTMLInputElement | HTMLTextAreaElement | HTMLSelectElement;

function isControl(element: unknown): element is Control {
  return element instanceof Element && element.matches('input, textarea, select');
}

export function issuesOf(form: HTMLFormElement): Issues {
  const wrong = [...form.elements].filter(
    (each): each is Control =>
      isControl(each) && each.name !== '' && each.willValidate && !each.validity.valid,
  );
  return Object.fromEntries(wrong.map((each) => [each.name, sayIssue(each)]));
}

function sayIssue(control: Control): string {
  const { validity, title } = control;
  const { type, min, max, minLength } = control as HTMLInputElement;
  if (validity.badInput) return 'Enter a number.';
  if (validity.valueMissing) return `${labelOf(control) ?? 'A value'} is missing.`;
  if (validity.typeMismatch)
    return type === 'email'
      ? 'Enter an e-mail address, such as ada@example.org.'
      : 'Enter a whole address, with https://.';
  if (validity.patternMismatch) return title === '' ? control.validationMessage : sentence(title);
  if (validity.tooShort) return `Enter ${minLength} characters or more.`;
  if (validity.rangeUnderflow) return `Enter ${min} or more.`;
  if (validity.rangeOverflow) return `Enter ${max} or less.`;
  if (validity.stepMismatch) return 'Enter a whole number.';
  return control.validationMessage;
}

function labelOf(control: Control): string | undefined {
  return control.labels?.[0]?.textContent ?? undefined;
}

/** The API's texts have no capital and no full stop. */
function sentence(text: string): string {
  const ended = /[.!?…]$/.test(text) ? text : `${text}.`;
  return ended.charAt(0).toUpperCase() + ended.slice(1);
}

/** The API's texts go on from the name of the field: "is wrong", "must be a name". */
function aboutField(control: Control, issue: string): string {
  return /^(is|are|has|may|must|contains?) /.test(issue) ? `${labelOf(control) ?? 'It'} ${issue}` : issue;
}

/** A value that the form cannot send, thrown by its `work`. */
export class FieldError extends Error {
  override readonly name = 'FieldError';
  readonly field: string;

  constructor(field: string, issue: string) {
    super(issue);
    this.field = field;
  }
}

interface Failed {
  readonly issues: Issues;
  /** What no field shows; empty if fields show everything. */
  readonly text: string;
}

/** A failed request's error, told at the fields that it is about. */
export function failureOf(error: unknown, form: HTMLFormElement | null): Failed {
  if (error instanceof FieldError) return { issues: { [error.field]: error.message }, text: '' };
  if (!(error instanceof BerthError) || error.code !== 'INVALID_REQUEST' || error.details.length === 0)
    return { issues: NO_ISSUES, text: sayError(error) };
  const issues: Record<string, string> = {};
  const elsewhere: string[] = [];
  for (const { field, issue } of error.details) {
    issues[field] = sentence(issue);
    const control = form && controlOf(field, form);
    if (control) issues[control.name] = sentence(aboutField(control, issue));
    else elsewhere.push(`${field}: ${issue}`);
  }
  return { issues, text: elsewhere.length === 0 ? '' : sentence(elsewhere.join('. ')) };
}

/** The form's field for an error's path: `last` for `generations_keep.last`, `allowed_cidrs` for `allowed_cidrs.0`. */
function controlOf(path: string, form: HTMLFormElement): Control | undefined {
  for (const part of path.split('.').toReversed()) {
    const control = form.elements.namedItem(part);
    if (isControl(control) && control.type !== 'hidden' && control.labels?.length) return control;
  }
  return undefined;
}

/** Moves the focus to the first field with an issue, and unfolds the part of the form that hides it. */
export function focusFirstIssue(form: HTMLFormElement): void {
  const control = form.querySelector<HTMLElement>('[aria-invalid="true"]');
  control?.closest('details')?.setAttribute('open', '');
  control?.focus();
}
