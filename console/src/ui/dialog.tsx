/** A modal dialog: the browser's own, which keeps the keyboard inside and gives the focus back. Escape closes it. */
import type { ComponentChildren } from 'preact';
import { useEffect, useId, useRef } from 'preact/hooks';
import { Icon } from './icon.tsx';

interface Props {
  readonly title: string;
  readonly onClose: () => void;
  readonly children: ComponentChildren;
  readonly wide?: boolean;
  /** What is shown once must be closed on purpose. */
  readonly stubborn?: boolean;
}

export function Dialog({ title, onClose, children, wide = false, stubborn = false }: Props) {
  const element = useRef<HTMLDialogElement>(null);
  const title_id = useId();
  useEffect(() => {
    const dialog = element.current;
    dialog?.showModal();
    return () => dialog?.close();
  }, []);
  return (
    <dialog
      ref={element}
      class={wide ? 'dialog wide' : 'dialog'}
      aria-labelledby={title_id}
      onCancel={(event) => {
        event.preventDefault();
        if (!stubborn) onClose();
      }}
      onClose={() => {
        // Browsers let nobody hold a dialog open against a second Escape. Gone already: it was closed by us.
        if (!element.current) return;
        if (stubborn) element.current.showModal();
        else onClose();
      }}
    >
      <header class="dialog-head">
        <h2 id={title_id}>{title}</h2>
        {!stubborn && (
          <button type="button" class="icon-button" aria-label="Close" onClick={onClose}>
            <Icon name="close" />
          </button>
        )}
      </header>
      {children}
    </dialog>
  );
}

export function DialogActions({ children }: { readonly children: ComponentChildren }) {
  return <footer class="dialog-actions">{children}</footer>;
}
