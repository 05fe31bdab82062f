/** The tables of what has happened and of what is told of it: the outbox, webhooks, notifications. */
import type { ColumnType, Generated, GeneratedAlways } from 'kysely';
import type {
  EventId,
  InstanceId,
  MailId,
  NotificationId,
  OrgId,
  ServiceAccountId,
  UserId,
  WebhookDeliveryId,
  WebhookId,
} from '../lib/ids.ts';

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
  webhooks: {
    id: WebhookId;
    /** Null: deleted. */
    org_id: OrgId | null;
    name: string;
    url: string;
    events: string[];
    status: Generated<'enabled' | 'disabled'>;
    disabled_reason: 'requested' | 'gone' | 'failing' | null;
    disabled_at: Date | null;
    secret: Buffer;
    previous_secret: Buffer | null;
    previous_expires_at: Date | null;
    failing_since: Date | null;
    failing_told: Generated<boolean>;
    slow: Generated<boolean>;
    /** Since when its present URL has answered 2xx; null: never. */
    proven_at: Date | null;
    version: Generated<number>;
    created_by: string;
    created_at: Generated<Date>;
    updated_at: Generated<Date>;
  };
  webhook_deliveries: {
    id: WebhookDeliveryId;
    webhook_id: WebhookId;
    event_id: EventId;
    position: number;
    instance_id: InstanceId | null;
    state: Generated<'pending' | 'delivered' | 'failed'>;
    attempts: Generated<number>;
    tries: Generated<number>;
    next_attempt_at: Date | null;
    created_at: Generated<Date>;
    /** Null before it; of deliveries made before this was kept here, and once it is too old. */
    first_at: Date | null;
    first_status: number | null;
    first_latency_ms: number | null;
    first_error: string | null;
    first_response: string | null;
  };
  /** All but the first. */
  webhook_attempts: {
    delivery_id: WebhookDeliveryId;
    number: number;
    at: Date;
    status: number | null;
    latency_ms: number;
    error: string | null;
    response: string;
  };
  /** Of what has no row in webhook_deliveries yet. */
  webhook_batches: {
    webhook_id: WebhookId;
    /** Of the last event. */
    position: number;
    positions: number[];
    ids: WebhookDeliveryId[];
    size: number;
    created_at: Generated<Date>;
  };
  webhook_drains: { webhook_id: WebhookId; owner: string; until: Date; again: Generated<boolean> };
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
