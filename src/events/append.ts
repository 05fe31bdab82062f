/**
 * The outbox. An event is written in the transaction that makes it true, and never otherwise; consumers
 * (webhooks, notifications, streams) read it from here. The order within an instance is `sequence`.
 */
import { sql } from 'kysely';
import type { Tx } from '../db/pool.ts';
import { type EventId, type InstanceId, newId, type OrgId } from '../lib/ids.ts';

export const EVENT_TYPES = [
  'instance.created',
  'instance.deleted',
  'instance.ssh_keys_replaced',
  'vm.started',
  'vm.stopped',
  'vm.restarted',
  'vm.failed',
  'vm.recovered',
  'disk.flushed',
  'disk.flush_failed',
  'ssh_key.added',
  'ssh_key.revoked',
  'api_key.created',
  'api_key.rotated',
  'api_key.revoked',
  'member.added',
  'member.removed',
  'member.role_changed',
] as const;
export type EventType = (typeof EVENT_TYPES)[number];

export interface NewEvent {
  readonly org_id: OrgId;
  /** Events of an instance are numbered; its row must be locked or freshly made in this transaction. */
  readonly instance_id?: InstanceId;
  readonly type: EventType;
  readonly data: Record<string, unknown>;
  /** `usr_…`, `ak_…`, `host_…` or `system`. */
  readonly actor: string;
}

export async function append(tx: Tx, event: NewEvent): Promise<EventId> {
  const id = newId('evt');
  const instance_id = event.instance_id ?? null;
  await tx
    .insertInto('events')
    .values({
      id,
      org_id: event.org_id,
      instance_id,
      sequence:
        instance_id === null
          ? null
          : sql<number>`(select coalesce(max(sequence), 0) + 1 from events where instance_id = ${instance_id})`,
      type: event.type,
      data: JSON.stringify(event.data),
      actor: event.actor,
    })
    .execute();
  return id;
}
