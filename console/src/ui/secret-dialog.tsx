/** A secret that the server shows once. Only a button with the consequence in its text closes it. */
import type { ComponentChildren } from 'preact';
import { Button } from './button.tsx';
import { Copyable } from './copy.tsx';
import { Dialog, DialogActions } from './dialog.tsx';

interface Props {
  readonly title: string;
  readonly secret: string;
  readonly label: string;
  readonly children: ComponentChildren;
  readonly onClose: () => void;
}

export function SecretDialog({ title, secret, label, children, onClose }: Props) {
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
