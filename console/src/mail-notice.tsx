/** For owners and admins of a server without a mail server: what does not arrive, until they hide it in this browser. */
import { useState } from 'preact/hooks';
import { readChoice, writeChoice } from './choices.ts';
import { leads } from './live/membership.ts';
import { sendsMail } from './settings.ts';
import { Button } from './ui/button.tsx';

export function MailNotice() {
  const [hidden, setHidden] = useState(() => readChoice('mail-notice') === 'hidden');
  if (hidden || sendsMail() || !leads()) return null;
  const hide = () => {
    writeChoice('mail-notice', 'hidden');
    setHidden(true);
  };
  return (
    <div class="notice page-notice" role="status">
      <details>
        <summary>This server sends no mail.</summary>
        <p>
          Pass the link of an invitation on yourself. To reset a password, run{' '}
          <code>berth user reset-password</code> on the server. To send mail, set <code>BERTH_SMTP_URL</code>{' '}
          there.
        </p>
      </details>
      <Button small kind="quiet" onClick={hide}>
        Hide
      </Button>
    </div>
  );
}
