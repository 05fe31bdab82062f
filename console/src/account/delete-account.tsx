/** Deletes the account, after its owner has typed its address. */
import { useState } from 'preact/hooks';
import { call } from '../api.ts';
import { forget, user } from '../session.ts';
import { Button } from '../ui/button.tsx';
import { ConfirmDialog } from '../ui/confirm-dialog.tsx';
import { Section } from '../ui/page.tsx';

export function DeleteAccount() {
  const [asked, setAsked] = useState(false);
  return (
    <Section
      title="Delete the account"
      lead="Also deletes the organisations that only you belong to, and everything in them."
    >
      <Button kind="danger" onClick={() => setAsked(true)}>
        Delete my account
      </Button>
      {asked && (
        <ConfirmDialog
          title="Delete my account"
          verb="Delete permanently"
          word={user.value?.email ?? ''}
          onClose={() => setAsked(false)}
          work={async () => {
            await call('deleteMe', {});
            forget('Deleted the account.');
          }}
        >
          <p>
            Your keys, sessions and memberships end at once. The organisations that only you belong to are
            deleted too, with their instances. This cannot be undone.
          </p>
        </ConfirmDialog>
      )}
    </Section>
  );
}
