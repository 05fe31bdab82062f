/**
 * Modal dialogs. They use the browser's `<dialog>`, which keeps the keyboard focus inside. When a dialog closes, the
 * focus returns to the element that opened it.
 */
import type { ComponentChildren } from 'preact';
import { useId, useLayoutEffect, useRef } from 'preact/hooks';
import { Button, Copyable } from './button.tsx';
import { Icon } from './icon.tsx';

interface DialogProps {
  readonly title: string;
  readonly onClose: () => void;
  readonly children: ComponentChildren;
  readonly wide?: boolean;
  /** A secret that is shown once needs a deliberate close. */
  readonly stubborn?: boolean;
  /** The request is in flight; the dialog stays to show the outcome. */
  readonly busy?: boolean;
}

/** For each dialog, the elements that had the focus before: its opener, then the opener of the dialog around it. */
const openers = new WeakMap<Element, readonly Element[]>();

/** Opens it over the page. @returns a function that closes it, and gives the focus back */
export function openModal(dialog: HTMLDialogElement): () => void {
  const opener = document.activeElement;
  const around = opener?.closest('dialog');
  const way_back = opener === null ? [] : [opener, ...((around && openers.get(around)) ?? [])];
  openers.set(dialog, way_back);
  dialog.showModal();
  return () => {
    dialog.close();
    // The browser finds the opener if it still exists. Often its row or its dialog is gone; then the focus stays inside.
    const focused = document.activeElement;
    if (focused !== null && focused !== document.body && !dialog.contains(focused)) return;
    const back = way_back.find((each) => each.isConnected && each !== document.body);
    ((back as HTMLElement | undefined) ?? document.querySelector('main'))?.focus({ preventScroll: true });
  };
}

export function Dialog({
  title,
  onClose,
  children,
  wide = false,
  stubborn = false,
  busy = false,
}: DialogProps) {
  const element = useRef<HTMLDialogElement>(null);
  const title_id = useId();
  // Before the next key, which already belongs to the dialog.
  useLayoutEffect(() => (element.current ? openModal(element.current) : undefined), []);
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
        // Browsers close a dialog at a second Escape, whatever we do. If it is gone already, we closed it.
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

interface SecretDialogProps {
  readonly title: string;
  readonly secret: string;
  readonly label: string;
  readonly children: ComponentChildren;
  readonly onClose: () => void;
}

/** A secret that the server shows once. Only a button with the consequence in its text closes it. */
export function SecretDialog({ title, secret, label, children, onClose }: SecretDialogProps) {
  return (
    <Dialog title={title} onClose={onClose} stubborn wide>
      <div class="dialog-body">
        {children}
        <Copyable text={secret} label={label} />
        <p class="notice">This is shown only once. Store it now.</p>
      </div>
      <DialogActions>
        <Button kind="primary" onClick={onClose}>
          I have kept it
        </Button>
      </DialogActions>
    </Dialog>
  );
}
