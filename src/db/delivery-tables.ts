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
} from '../lib/ids.ts';

type Json<T> = ColumnType<T, string, string>;

export interface DeliveryTables {
  /** Every event up to there is settled: committed and handed to the consumers, or never will be. */
  event_head: { one: Generated<boolean>; position: number };
  events: {
    id: EventId;
    /** Shown once `event_head` has come to it. */
    position: GeneratedAlways<number>;
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
  };
  notification_mails: {
    user_id: UserId;
    id: GeneratedAlways<number>;
    batch: string;
    notifications: NotificationId[];
    more: Generated<number>;
    attempts: Generated<number>;
    due_at: Generated<Date>;
  };
  mails: {
    id: MailId;
    sealed: Buffer;
    attempts: Generated<number>;
    due_at: Generated<Date>;
    good_until: Date;
  };
  mail_counts: { address: string; kind: string; sent_at: Date[] };
  notification_preferences: { user_id: UserId; kind: string; mail: boolean };
  known_places: { user_id: UserId; place_hash: Buffer; last_seen_at: Generated<Date> };
}
