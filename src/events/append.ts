/**
 * The outbox. An event is written in the transaction that makes it true, and never otherwise; consumers
 * (webhooks, notifications, streams) read it from here. The order within an instance is `sequence`.
 */
import { sql } from 'kysely';
import { afterCommit, type Tx } from '../db/pool.ts';
import { type EventId, type InstanceId, newId, type OrgId, type UserId } from '../lib/ids.ts';
import type { EventType, PrivateEventType } from './model.ts';
import { wakeDispatcher } from './wake.ts';

interface Happened {
  readonly data: Record<string, unknown>;
  /** `usr_…`, `sa_…`, `host_…` or `system`. */
  readonly actor: string;
}

export interface NewEvent extends Happened {
  readonly org_id: OrgId;
  /** Events of an instance are numbered; its row must be locked or freshly made in this transaction. */
  readonly instance_id?: InstanceId;
  readonly type: EventType;
}

/** Of an account (`user_id`), an organisation, or a person in one: for notifications only. */
export interface NewPrivateEvent extends Happened {
  readonly type: PrivateEventType;
  readonly org_id: OrgId | null;
  readonly user_id: UserId | null;
  readonly instance_id?: InstanceId;
}

export async function append(tx: Tx, event: NewEvent): Promise<EventId> {
  const instance_id = event.instance_id ?? null;
  const sequence = instance_id === null ? null : await nextSequence(tx, instance_id);
  return insert(tx, { ...event, instance_id, sequence, user_id: null });
}

export async function appendPrivate(tx: Tx, event: NewPrivateEvent): Promise<EventId> {
  return insert(tx, { ...event, instance_id: event.instance_id ?? null, sequence: null });
}

async function insert(
  tx: Tx,
  {
    data,
    ...event
  }: Happened & {
    readonly org_id: OrgId | null;
    readonly user_id: UserId | null;
    readonly instance_id: InstanceId | null;
    readonly sequence: number | null;
    readonly type: EventType | PrivateEventType;
  },
): Promise<EventId> {
  const id = newId('evt');
  const { org_id, user_id, instance_id, sequence, type, actor } = event;
  await tx
    .insertInto('events')
    .values({ id, org_id, user_id, instance_id, sequence, type, actor, data: JSON.stringify(data) })
    .execute();
  afterCommit(tx, wakeDispatcher);
  return id;
}

async function nextSequence(tx: Tx, instance_id: InstanceId): Promise<number> {
  const { event_sequence } = await tx
    .updateTable('instances')
    .set({ event_sequence: sql`event_sequence + 1` })
    .where('id', '=', instance_id)
    .returning('event_sequence')
    .executeTakeFirstOrThrow();
  return event_sequence;
}
