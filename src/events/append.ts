/**
 * The outbox. An event is written in the transaction that makes it true, and never otherwise; consumers
 * (webhooks, notifications, streams) read it from here. The order within an instance is `sequence`.
 */
import { CompiledQuery } from 'kysely';
import { afterCommit, type Tx } from '../db/pool.ts';
import { type EventId, type InstanceId, newId, type OrgId, type UserId } from '../lib/ids.ts';
import type { EventType, PrivateEventType } from './model.ts';
import { wakeDispatcher } from './wake.ts';

interface Happened {
  readonly data: Record<string, unknown>;
  /** `usr_…`, `sa_…`, `host_…`, `operator` (a command on the server) or `system`. */
  readonly actor: string;
}

export interface NewEvent extends Happened {
  readonly org_id: OrgId;
  /** Events of an instance are numbered; its row must be locked or freshly made in this transaction. */
  readonly instance_id?: InstanceId;
  /** The account that a notification tells of it. */
  readonly user_id?: UserId;
  readonly type: EventType;
}

/** Of an account (`user_id`), an organisation, or a person in one: for notifications only. */
export interface NewPrivateEvent extends Happened {
  readonly type: PrivateEventType;
  readonly org_id: OrgId | null;
  readonly user_id: UserId | null;
  readonly instance_id?: InstanceId;
}

/** Numbers the instance's event: later calls of the transaction may read on from it. */
const INSERT_NUMBERED = `
  with numbered as (update instances set event_sequence = event_sequence + 1 where id = $4 returning event_sequence)
  insert into events (id, org_id, user_id, instance_id, type, data, actor, sequence)
  select $1, $2, $3, $4, $5, $6::jsonb, $7, event_sequence from numbered`;
const INSERT = `
  insert into events (id, org_id, user_id, instance_id, type, data, actor) values ($1, $2, $3, $4, $5, $6::jsonb, $7)`;

export async function append(tx: Tx, event: NewEvent): Promise<EventId> {
  const [id, values] = valuesOf({ user_id: null, ...event });
  const text = event.instance_id === undefined ? INSERT : INSERT_NUMBERED;
  await tx.executeQuery(CompiledQuery.raw(text, values));
  afterCommit(tx, wakeDispatcher);
  return id;
}

export async function appendPrivate(tx: Tx, event: NewPrivateEvent): Promise<EventId> {
  const [id, values] = valuesOf(event);
  await tx.executeQuery(CompiledQuery.raw(INSERT, values));
  afterCommit(tx, wakeDispatcher);
  return id;
}

function valuesOf(event: Omit<NewPrivateEvent, 'type'> & { readonly type: string }): [EventId, unknown[]] {
  const id = newId('evt');
  const { org_id, user_id, instance_id = null, type, data, actor } = event;
  return [id, [id, org_id, user_id, instance_id, type, JSON.stringify(data), actor]];
}
