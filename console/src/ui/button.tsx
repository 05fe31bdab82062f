/** The button of all pages: busy while its work goes on, and with a reason when it cannot be used. */
import type { ComponentChildren, JSX } from 'preact';
import { useId } from 'preact/hooks';

interface Props extends Omit<JSX.IntrinsicElements['button'], 'type'> {
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
}: Props) {
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
