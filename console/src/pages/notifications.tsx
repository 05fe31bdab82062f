/** The page of the user's notifications, kept current, and the form that chooses which kinds are also mailed. */
import { useState } from 'preact/hooks';
import type { Notification } from '../../../client/src/berth.ts';
import type { NotificationKind, NotificationPreferences } from '../../../client/src/generated.ts';
import { call } from '../api.ts';
import { instances } from '../live/instances.ts';
import { unread } from '../live/streams.ts';
import { sendsMail } from '../settings.ts';
import { Button } from '../ui/button.tsx';
import { Icon, type IconName } from '../ui/icon.tsx';
import { Empty, Failure, Loaded, PageHead, Section } from '../ui/page.tsx';
import { LoadedList } from '../ui/table.tsx';
import { Time } from '../ui/time.tsx';
import { attempt, readThenChange, useAction } from '../use-action.ts';
import { useList, useQuery } from '../use-query.ts';

const ICONS: Record<Notification['severity'], IconName> = {
  info: 'bell',
  warning: 'warning',
  critical: 'warning',
};

export function NotificationsPage() {
  const [only_unread, setOnlyUnread] = useState(false);
  const list = useList(
    `notifications ${only_unread}`,
    (query) =>
      call('listNotifications', {
        query: { ...(only_unread ? { status: 'unread' as const } : {}), ...query },
      }),
    ({ kind }) => kind === 'notification' || kind === 'unread',
  );
  const mark = (work: () => Promise<unknown>) =>
    attempt(async () => {
      await work();
      unread.value = (await call('countUnreadNotifications', {})).count;
      await list.reload();
    });
  const readAll = () => {
    const newest = list.data?.[0];
    return mark(() =>
      call('markAllNotifications', { body: newest && !only_unread ? { before: newest.id } : {} }),
    );
  };
  return (
    <>
      <PageHead
        title="Notifications"
        lead="Events that need your attention."
        actions={
          <>
            <Button aria-pressed={only_unread} onClick={() => setOnlyUnread(!only_unread)}>
              {only_unread ? 'Show all' : 'Only unread'}
            </Button>
            <Button onClick={() => void readAll()}>Mark all as read</Button>
          </>
        }
      />
      <LoadedList
        list={list}
        empty={
          <Empty icon="bell" title={only_unread ? 'Nothing unread' : 'Nothing yet'}>
            <p>
              Failed VMs, failed flushes, new keys and logins from new places are listed here. Choose below
              which of them are also sent by mail.
            </p>
          </Empty>
        }
      >
        {(found) => (
          <ul class="notifications">
            {found.map((each) => (
              <Entry
                key={each.id}
                notification={each}
                onRead={(read) =>
                  mark(() => call('markNotification', { path: { id: each.id }, body: { read } }))
                }
              />
            ))}
          </ul>
        )}
      </LoadedList>
      <NotificationPreferencesForm />
    </>
  );
}

function linkOf({ resource }: Notification): string | null {
  if (resource?.type === 'instance') {
    const name = instances.value?.find(({ id }) => id === resource.id)?.name;
    return name === undefined ? null : `/instances/${name}`;
  }
  return resource?.type === 'webhook' ? `/webhooks/${resource.id}` : null;
}

function Entry({
  notification,
  onRead,
}: {
  readonly notification: Notification;
  readonly onRead: (read: boolean) => void;
}) {
  const { severity, title, body, count, created_at, read_at } = notification;
  const link = linkOf(notification);
  return (
    <li class={`${severity}${read_at === null ? ' unread' : ''}`}>
      <Icon name={ICONS[severity]} />
      <div>
        <p class="notification-title">
          {link === null ? title : <a href={link}>{title}</a>}{' '}
          {count > 1 && <span class="tag">{count} times</span>}
        </p>
        <p class="dim wrap">{body}</p>
        <p class="dim">
          {severity} · <Time at={created_at} />
        </p>
      </div>
      <Button
        small
        kind="quiet"
        aria-label={`Mark ${read_at === null ? 'read' : 'unread'}: ${title}`}
        onClick={() => onRead(read_at === null)}
      >
        {read_at === null ? 'Mark read' : 'Mark unread'}
      </Button>
    </li>
  );
}

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
function NotificationPreferencesForm() {
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
