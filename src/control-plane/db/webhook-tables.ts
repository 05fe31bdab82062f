/** The tables of webhooks. */
import type { Generated } from 'kysely';
import type { EventId, InstanceId, OrgId, WebhookDeliveryId, WebhookId } from '../../shared/ids.ts';

export interface WebhookTables {
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
    /** The first 2xx of its present URL; null: there was none. */
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
    /** Of the event. */
    position: number;
    instance_id: InstanceId | null;
    state: Generated<'pending' | 'delivered' | 'failed'>;
    /** A first attempt or a replay: sent in the order of positions. Otherwise a retry or a redelivery. */
    in_order: Generated<boolean>;
    /** Over its life. */
    attempts: Generated<number>;
    /** Since it was last asked for: a redelivery or a replay starts the backoff again. */
    tries: Generated<number>;
    /** Null unless it is pending. */
    next_attempt_at: Generated<Date | null>;
    created_at: Generated<Date>;
  };
  webhook_attempts: {
    delivery_id: WebhookDeliveryId;
    number: number;
    at: Date;
    url: string;
    /** Null: there was no answer. */
    status: number | null;
    latency_ms: number;
    error: string | null;
    response_headers: Record<string, string>;
    response: string;
  };
  /** The process that sends to a webhook. */
  webhook_leases: {
    webhook_id: WebhookId;
    owner: string;
    until: Date;
    /** Another process has seen new deliveries since the owner last looked. */
    woken: Generated<boolean>;
  };
}
