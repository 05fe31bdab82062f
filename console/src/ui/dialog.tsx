/** A modal dialog: the browser's own, which keeps the keyboard inside. Escape closes it, and the focus goes back. */
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
  /** The request is in flight; the dialog stays to show the outcome. */
  readonly busy?: boolean;
}

/** By dialog, what had the focus before it: the opener, and behind it the opener of the dialog that this one is in. */
const openers = new WeakMap<Element, readonly Element[]>();

function open(dialog: HTMLDialogElement): () => void {
  const opener = document.activeElement;
  const around = opener?.closest('dialog');
  const way_back = opener === null ? [] : [opener, ...((around && openers.get(around)) ?? [])];
  openers.set(dialog, way_back);
  dialog.showModal();
  return () => {
    dialog.close();
    // The browser finds the opener again where it is still there. Often it is not: its row or its dialog went.
    if (document.activeElement !== document.body) return;
    const back = way_back.find((each) => each.isConnected && each !== document.body);
    ((back as HTMLElement | undefined) ?? document.querySelector('main'))?.focus({ preventScroll: true });
  };
}

export function Dialog({ title, onClose, children, wide = false, stubborn = false, busy = false }: Props) {
  const element = useRef<HTMLDialogElement>(null);
  const title_id = useId();
  useEffect(() => (element.current ? open(element.current) : undefined), []);
  return (
    <dialog
      ref={element}
      class={wide ? 'dialog wide' : 'dialog'}
      aria-labelledby={title_id}
      onCancel={(event) => {
        event.preventDefault();
        if (!stubborn && !busy) onClose();
      }}
      onClose={() => {
        // Browsers let nobody hold a dialog open against a second Escape. Gone already: it was closed by us.
        if (!element.current) return;
        if (stubborn || busy) element.current.showModal();
        else onClose();
      }}
    >
      <header class="dialog-head">
        <h2 id={title_id}>{title}</h2>
        {!stubborn && (
          <button type="button" class="icon-button" aria-label="Close" disabled={busy} onClick={onClose}>
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
