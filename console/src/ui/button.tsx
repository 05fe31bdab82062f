/** Buttons: the plain one, a row of choices, and one that copies a text. */
import type { ComponentChildren, JSX } from 'preact';
import { useEffect, useId, useState } from 'preact/hooks';
import { Icon } from './icon.tsx';

interface ButtonProps extends Omit<JSX.IntrinsicElements['button'], 'type'> {
  readonly kind?: 'primary' | 'plain' | 'danger' | 'quiet';
  readonly busy?: boolean;
  readonly submit?: boolean;
  readonly small?: boolean;
  /** Why it cannot be used now: shown beside it. It stays focusable, so that everybody can learn the reason. */
  readonly reason?: string | undefined;
  /** The id of a visible text that says why, in place of `reason`. */
  readonly reason_id?: string | undefined;
  readonly children: ComponentChildren;
}

/** While busy it keeps its width and announces its state. It stays focusable, so the keyboard focus is not lost. */
export function Button({
  kind = 'plain',
  busy = false,
  submit,
  small,
  reason,
  reason_id,
  children,
  class: more,
  ...rest
}: ButtonProps) {
  const size = small === true ? ' small' : '';
  const own_id = useId();
  const told_by = reason === undefined ? reason_id : own_id;
  const is_off = busy || told_by !== undefined;
  const button = (
    <button
      {...rest}
      {...(told_by === undefined ? {} : { 'aria-describedby': told_by })}
      type={submit === true ? 'submit' : 'button'}
      class={`button ${kind}${size} ${more ?? ''}`}
      aria-busy={busy}
      aria-disabled={is_off}
      onClick={is_off ? (event) => event.preventDefault() : rest.onClick}
    >
      <span class="button-label">{children}</span>
      {busy && <span class="spinner" aria-hidden="true" />}
    </button>
  );
  if (reason === undefined) return button;
  return (
    <span class="with-reason">
      {button}
      <span class="hint" id={own_id}>
        {reason}
      </span>
    </span>
  );
}

interface ChoiceProps<T extends string> {
  /** For screen readers. */
  readonly name: string;
  readonly options: readonly (readonly [value: T, label: string])[];
  readonly value: T;
  readonly onChoose: (value: T) => void;
}

/** One of a few values, as buttons in a row. */
export function Choice<T extends string>({ name, options, value, onChoose }: ChoiceProps<T>) {
  return (
    <fieldset class="choice-bar">
      <legend class="hidden">{name}</legend>
      {options.map(([each, label]) => (
        <button key={each} type="button" aria-pressed={each === value} onClick={() => onChoose(each)}>
          {label}
        </button>
      ))}
    </fieldset>
  );
}

const TOLD_MS = 2_000;

/** Text with a button that copies it. */
export function CopyButton({ text, label }: { readonly text: string; readonly label: string }) {
  const [told, setTold] = useState<'copied' | 'failed' | null>(null);
  useEffect(() => {
    if (told === null) return undefined;
    const timer = setTimeout(() => setTold(null), TOLD_MS);
    return () => clearTimeout(timer);
  }, [told]);
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setTold('copied');
    } catch {
      setTold('failed');
    }
  };
  return (
    <button
      type="button"
      class="button plain small copy-button"
      onClick={copy}
      // The outcome is the name while it is shown.
      aria-label={told === null ? label : undefined}
    >
      <Icon name={told === 'copied' ? 'check' : 'copy'} />
      <span aria-live="polite">
        {told === 'copied' ? 'Copied' : told === 'failed' ? 'Select it' : 'Copy'}
      </span>
    </button>
  );
}

export function Copyable({ text, label }: { readonly text: string; readonly label: string }) {
  return (
    <div class="copyable">
      <code>{text}</code>
      <CopyButton text={text} label={label} />
    </div>
  );
}
