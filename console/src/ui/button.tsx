import type { ComponentChildren, JSX } from 'preact';
import { useId } from 'preact/hooks';

interface Props extends Omit<JSX.IntrinsicElements['button'], 'type'> {
  readonly kind?: 'primary' | 'plain' | 'danger' | 'quiet';
  readonly busy?: boolean;
  readonly submit?: boolean;
  readonly small?: boolean;
  /** Why it cannot be used now: shown beside it. It stays focusable, so that everybody can learn the reason. */
  readonly reason?: string | undefined;
  readonly children: ComponentChildren;
}

/** While busy it keeps its width and announces its state. It stays focusable, so the keyboard focus is not lost. */
export function Button({
  kind = 'plain',
  busy = false,
  submit,
  small,
  reason,
  children,
  class: more,
  ...rest
}: Props) {
  const size = small === true ? ' small' : '';
  const reason_id = useId();
  const is_off = busy || reason !== undefined;
  const button = (
    <button
      {...rest}
      {...(reason === undefined ? {} : { 'aria-describedby': reason_id })}
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
      <span class="hint" id={reason_id}>
        {reason}
      </span>
    </span>
  );
}
