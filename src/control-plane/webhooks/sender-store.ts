/** What a sender reads of its webhook and its deliveries. It holds the webhook's lease, so it need not lock rows. */
import { sql } from 'kysely';
import type { EventId, InstanceId, OrgId, WebhookDeliveryId, WebhookId } from '../../shared/ids.ts';
import type { Tx } from '../db/pool.ts';
import type { SentEvent } from './message.ts';
import type { WebhookStatus } from './model.ts';

export interface Receiver {
  readonly id: WebhookId;
  readonly url: string;
  readonly status: WebhookStatus;
  /** Null: the webhook is deleted. */
  readonly org_id: OrgId | null;
  /** Its URL has answered 2xx. */
  readonly proven: boolean;
  /** Its last recorded outcomes were failures. */
  readonly failing: boolean;
  readonly secret: Buffer;
  /** Null also after its grace period. */
  readonly previous_secret: Buffer | null;
}

export async function findReceiver(tx: Tx, id: WebhookId): Promise<Receiver | undefined> {
  return tx
    .selectFrom('webhooks')
    .select(['id', 'url', 'status', 'org_id', 'secret'])
    .select(sql<boolean>`proven_at is not null`.as('proven'))
    .select(sql<boolean>`failing_since is not null`.as('failing'))
    .select(
      sql<Buffer | null>`case when previous_expires_at > now() then previous_secret end`.as(
        'previous_secret',
      ),
    )
    .where('id', '=', id)
    .executeTakeFirst();
}

/** A delivery that is due, with its event. */
export interface DueDelivery extends SentEvent {
  readonly id: WebhookDeliveryId;
  readonly position: number;
  readonly instance_id: InstanceId | null;
  readonly in_order: boolean;
  readonly attempts: number;
  readonly tries: number;
}

export interface Page {
  /** What is sent in order is read from beyond this position. */
  readonly after: number;
  /** How many of those, and how many retries, at most. */
  readonly in_order: number;
  readonly retries: number;
}

/** What a request sends of an event `e`. */
const SENT = sql`e.org_id, e.type, e.data, e.actor, e.sequence,
      to_char(e.created_at at time zone 'utc', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') as event_at`;

/** Undefined once it has expired. */
export async function findSentEvent(tx: Tx, id: EventId): Promise<SentEvent | undefined> {
  const { rows } =
    await sql<SentEvent>`select e.id as event_id, ${SENT} from events e where e.id = ${id}`.execute(tx);
  return rows[0];
}

/** Due deliveries: those sent in order, by position, then the retries that are due for longest. */
export async function listDue(
  tx: Tx,
  webhook_id: WebhookId,
  { after, in_order, retries }: Page,
): Promise<readonly DueDelivery[]> {
  const { rows } = await sql<DueDelivery>`
    select d.id, d.position, d.instance_id, d.in_order, d.attempts, d.tries, d.event_id, ${SENT}
    from (
      (select * from webhook_deliveries
       where webhook_id = ${webhook_id} and state = 'pending' and in_order and position > ${after}
       order by position limit ${in_order})
      union all
      (select * from webhook_deliveries
       where webhook_id = ${webhook_id} and state = 'pending' and not in_order and next_attempt_at <= now()
       order by next_attempt_at limit ${retries})
    ) as d join events e on e.id = d.event_id
    order by d.in_order desc, d.position`.execute(tx);
  return rows;
}
