/** The user's notifications, live, and the choice of those that are mailed too. */
import { useState } from 'preact/hooks';
import type { Notification } from '../../../client/src/berth.ts';
import { NotificationPreferencesForm } from '../account/notification-preferences.tsx';
import { call } from '../api.ts';
import { attempt } from '../attempt.ts';
import { instances } from '../live/instances.ts';
import { unread } from '../live/unread.ts';
import { Button } from '../ui/button.tsx';
import { Icon, type IconName } from '../ui/icon.tsx';
import { LoadedList } from '../ui/loaded-list.tsx';
import { Empty, PageHead } from '../ui/page.tsx';
import { Time } from '../ui/time.tsx';
import { useList } from '../use-list.ts';

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
