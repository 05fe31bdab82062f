/** Appends events that raise notifications, and runs the background tasks that raise and mail them. */
import { randomBytes } from 'node:crypto';
import type { Db } from '../../src/control-plane/db/pool.ts';
import { append, dispatchEvents } from '../../src/control-plane/events/append.ts';
import { type Deliver, sendMails } from '../../src/control-plane/mail/send-mails.ts';
import { Mailbox } from '../../src/control-plane/mail/store.ts';
import { composeMails } from '../../src/control-plane/notifications/compose-mails.ts';
import { raiseNotifications } from '../../src/control-plane/notifications/raise-notifications.ts';
import { newId, type OrgId, type UserId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { Sealer } from '../../src/shared/seal.ts';
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

/** With a separate key, which decrypts only the mails of notifications. */
const mailbox = new Mailbox(new Sealer(randomBytes(32), 'test mails'));

/** Raises the notifications of all events that are not dispatched yet. */
export function raiseNotificationsOfEvents(db: Db): Promise<void> {
  return dispatchEvents(db, [raiseNotifications]);
}

/** Like {@link raiseNotificationsOfEvents}; then composes and sends their mails. */
export async function mailNotificationsOfEvents(db: Db, deliver: Deliver): Promise<void> {
  await raiseNotificationsOfEvents(db);
  await composeMails({ db, mailbox, public_url: 'http://127.0.0.1' });
  await sendMails({ db, mailbox, deliver, log: createLog('test', 'silent') });
}

export async function notificationsOf(client: Client, query = ''): Promise<readonly NotificationOut[]> {
  const answer = await client.get<Page<NotificationOut>>(`/v1/notifications${query}`);
  if (answer.status !== 200) throw new Error(`${answer.status} ${answer.text}`);
  return answer.body.data;
}

/** Appends an event that notifies its actor, each time about another resource unless `key_id` names one. */
export async function appendNotifyingEvent(
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
