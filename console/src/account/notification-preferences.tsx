/** Which notifications the account gets, and which of them by mail. */
import type { NotificationKind, NotificationPreferences } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { readThenChange } from '../read-then-change.ts';
import { sendsMail } from '../settings.ts';
import { Failure } from '../ui/failure.tsx';
import { Loaded, Section } from '../ui/page.tsx';
import { useAction } from '../use-action.ts';
import { useQuery } from '../use-query.ts';

const NAMES: Readonly<Record<NotificationKind, string>> = {
  'vm.failed': 'VM failed',
  'vm.recovered': 'VM recovered',
  'disk.flush_failed': 'Flush failed',
  'disk.nearly_full': 'Disk nearly full',
  'api_key.created': 'API key created',
  'api_key.expiring': 'API key expires soon',
  'ssh_key.added': 'SSH key added',
  'account.locked': 'Account locked',
  'login.new_place': 'Login from a new place',
  'mfa.added': 'Second factor added',
  'mfa.removed': 'Second factor removed',
  'password.changed': 'Password changed',
  'billing_email.changed': 'Billing address changed',
  'webhook.failing': 'Webhook fails',
  'webhook.disabled': 'Webhook disabled',
  'org.invited': 'Invited to an organisation',
  'org.role_changed': 'Role changed',
};

/** Chooses which kinds of notifications are mailed. Those about the account's security always are. */
export function NotificationPreferencesForm() {
  const query = useQuery('preferences', () => call('getNotificationPreferences', {}));
  return (
    <Section
      title="By mail"
      lead="Choose which kinds of notifications are also mailed to you. Those about the security of your account always are."
    >
      {!sendsMail() && (
        <p class="notice page-notice">
          This server sends no mail: its mails are files that only its operator can read.
        </p>
      )}
      <Loaded query={query} lines={6}>
        {(preferences) => <Form preferences={preferences} onSaved={query.put} />}
      </Loaded>
    </Section>
  );
}

interface FormProps {
  readonly preferences: NotificationPreferences;
  readonly onSaved: (saved: NotificationPreferences) => void;
}

function Form({ preferences, onSaved }: FormProps) {
  const { mail, always, descriptions } = preferences;
  const isFixed = (kind: string) => (always as readonly string[]).includes(kind);
  const action = useAction(async (kind: NotificationKind, mailed: boolean) => {
    const saved = await readThenChange(
      (options) => call('getNotificationPreferences', {}, options),
      (now, options) => {
        const kept = Object.entries(now.mail).filter(([each]) => !isFixed(each));
        const wanted = { ...Object.fromEntries(kept), [kind]: mailed };
        return call('setNotificationPreferences', { body: { mail: wanted } }, options);
      },
    );
    onSaved(saved);
  });
  const kinds = Object.entries(mail) as [NotificationKind, boolean][];
  // First those that can be changed.
  const ordered = [...kinds.filter(([kind]) => !isFixed(kind)), ...kinds.filter(([kind]) => isFixed(kind))];
  return (
    <div class="panel">
      <ul class="mail-kinds">
        {ordered.map(([kind, mailed]) => (
          <li key={kind}>
            <input
              type="checkbox"
              id={`mail-${kind}`}
              checked={mailed}
              disabled={isFixed(kind)}
              aria-describedby={`mail-${kind}-when`}
              // One change at a time, because each request sends all preferences.
              onClick={(event) => action.busy && event.preventDefault()}
              onChange={(event) => void action.run(kind, event.currentTarget.checked)}
            />
            <label for={`mail-${kind}`}>
              {NAMES[kind]} {isFixed(kind) && <span class="tag">always</span>}
            </label>
            <p class="hint" id={`mail-${kind}-when`}>
              {descriptions[kind]}
            </p>
          </li>
        ))}
      </ul>
      <Failure text={action.error} />
    </div>
  );
}
