/** The tables of the outbox, notifications and mails. */
import type { ColumnType, Generated, GeneratedAlways } from 'kysely';
import type {
  EventId,
  InstanceId,
  MailId,
  NotificationId,
  OrgId,
  ServiceAccountId,
  UserId,
} from '../../shared/ids.ts';

type Json<T> = ColumnType<T, string, string>;

export interface DeliveryTables {
  /** The highest position given so far. The dispatcher locks this row. */
  event_head: { one: Generated<boolean>; position: number };
  events: {
    id: EventId;
    /** The order of the inserts. */
    serial: GeneratedAlways<number>;
    /** Given by the dispatcher, in the order of its batches; null until then. */
    position: Generated<number | null>;
    org_id: OrgId | null;
    user_id: UserId | null;
    instance_id: InstanceId | null;
    sequence: number | null;
    type: string;
    data: Json<unknown>;
    actor: string;
    created_at: Generated<Date>;
  };
  notifications: {
    id: NotificationId;
    recipient: UserId | ServiceAccountId;
    /** The organisation that it concerns; null: the account. */
    org_id: Generated<OrgId | null>;
    kind: string;
    title: string;
    body: string;
    resource_type: string | null;
    resource_id: string | null;
    data: Json<Record<string, unknown>>;
    count: number;
    position: number;
    event_id: EventId;
    created_at: Date;
    raised_at: Date;
    read_at: Date | null;
    /** It waits for a mail that is composed then, or later; null: it waits for none. */
    mail_after: Date | null;
  };
  mails: {
    id: MailId;
    kind: string;
    /** The account that a mail of notifications goes to; null: any other mail. */
    user_id: UserId | null;
    /** Address, text and token. */
    sealed: Buffer;
    attempts: Generated<number>;
    /** The next try. A process that sends the mail moves it on first, as its lease. */
    due_at: Generated<Date>;
    good_until: Date;
  };
  mail_counts: { address: string; kind: string; sent_at: Date[] };
  notification_preferences: { user_id: UserId; kind: string; mail: boolean };
  known_places: { user_id: UserId; place_hash: Buffer; last_seen_at: Generated<Date> };
}
