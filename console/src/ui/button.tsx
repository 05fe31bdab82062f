import type { ComponentChildren, JSX } from 'preact';

interface Props extends Omit<JSX.IntrinsicElements['button'], 'type'> {
  readonly kind?: 'primary' | 'plain' | 'danger' | 'quiet';
  readonly busy?: boolean;
  readonly submit?: boolean;
  readonly small?: boolean;
  readonly children: ComponentChildren;
}

/** While busy it keeps its width and announces its state. It stays focusable, so the keyboard focus is not lost. */
export function Button({
  kind = 'plain',
  busy = false,
  submit,
  small,
  children,
  class: more,
  ...rest
}: Props) {
  const size = small === true ? ' small' : '';
  return (
    <button
      {...rest}
      type={submit === true ? 'submit' : 'button'}
      class={`button ${kind}${size} ${more ?? ''}`}
      aria-busy={busy}
      aria-disabled={busy}
      onClick={busy ? (event) => event.preventDefault() : rest.onClick}
    >
      <span class="button-label">{children}</span>
      {busy && <span class="spinner" aria-hidden="true" />}
    </button>
  );
}
