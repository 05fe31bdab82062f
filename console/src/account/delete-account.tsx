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
      lead="With the organisations that are yours alone, and everything in them."
    >
      <Button kind="danger" onClick={() => setAsked(true)}>
        Delete my account
      </Button>
      {asked && (
        <ConfirmDialog
          title="Delete my account"
          verb="Delete for ever"
          word={user.value?.email ?? ''}
          onClose={() => setAsked(false)}
          work={async () => {
            await call('deleteMe', {});
            forget('The account is deleted.');
          }}
        >
          <p>Keys, sessions and your memberships end at once. This cannot be taken back.</p>
        </ConfirmDialog>
      )}
    </Section>
  );
}
