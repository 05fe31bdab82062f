/** The background tasks that tell people, run when a test says so. */
import type { Db } from '../../src/db/pool.ts';
import { append } from '../../src/events/append.ts';
import type { OrgId, UserId } from '../../src/lib/ids.ts';
import { newId } from '../../src/lib/ids.ts';
import { createLog } from '../../src/lib/log.ts';
import type { Deliver } from '../../src/mail/mailer.ts';
import { raiseNotifications } from '../../src/notifications/raise-notifications.ts';
import { sendNotificationMails } from '../../src/notifications/send-mails.ts';
import { dispatchEvents } from '../../src/tasks/dispatch-events.ts';
import type { Client, Page } from './client.ts';

export interface NotificationOut {
  readonly id: string;
  readonly kind: string;
  readonly severity: string;
  readonly title: string;
  readonly body: string;
  readonly resource: { readonly type: string; readonly id: string } | null;
  readonly data: Record<string, unknown>;
  readonly count: number;
  readonly created_at: string;
  readonly read_at: string | null;
}

/** Everything that has happened is told. */
export function tellAll(db: Db): Promise<void> {
  return dispatchEvents(db, [raiseNotifications]);
}

/** As {@link tellAll}, and the mails are out. */
export async function tellByMail(db: Db, deliver: Deliver): Promise<void> {
  await tellAll(db);
  const log = createLog('test', 'silent');
  await sendNotificationMails({ db, deliver, public_url: 'http://127.0.0.1', log });
}

export async function notificationsOf(client: Client, query = ''): Promise<readonly NotificationOut[]> {
  const answer = await client.get<Page<NotificationOut>>(`/v1/notifications${query}`);
  if (answer.status !== 200) throw new Error(`${answer.status} ${answer.text}`);
  return answer.body.data;
}

/** Something that its actor is told of, each time on another resource unless `key_id` says which. */
export async function happen(
  db: Db,
  { org_id, user_id }: { org_id: OrgId; user_id: UserId },
  key_id: string = newId('key'),
): Promise<void> {
  await append(db, {
    org_id,
    type: 'ssh_key.added',
    data: { ssh_key: { id: key_id, name: 'laptop', fingerprint: 'SHA256:x' } },
    actor: user_id,
    user_id,
  });
}
