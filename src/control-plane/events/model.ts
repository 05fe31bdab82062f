/**
 * Lists the types of events, and has pure functions: which resource an event is about, and how the API shows an event.
 */
import { rfc3339 } from '../../shared/clock.ts';
import type { NumberedEvent } from './store.ts';

/** The types of public events, which go to webhooks, the event API and notifications. */
export const EVENT_TYPES = [
  'instance.created',
  'instance.deleted',
  'instance.forked',
  'instance.restored',
  'instance.ssh_keys_replaced',
  'vm.started',
  'vm.stopped',
  'vm.suspended',
  'vm.restarted',
  'vm.failed',
  'vm.recovered',
  'disk.flushed',
  'disk.flush_failed',
  'egress.denied',
  'port.created',
  'port.changed',
  'port.deleted',
  'ssh_key.added',
  'ssh_key.revoked',
  'api_key.created',
  'api_key.rotated',
  'api_key.revoked',
  'member.added',
  'member.removed',
  'member.role_changed',
  'webhook.disabled',
  'webhook.ping',
] as const;
export type EventType = (typeof EVENT_TYPES)[number];

/** The types of private events, which go to notifications only. */
export const PRIVATE_EVENT_TYPES = [
  'account.locked',
  'login.new_place',
  'mfa.added',
  'mfa.removed',
  'password.changed',
  'billing_email.changed',
  'api_key.expiring',
  'disk.nearly_full',
  'org.invited',
  'webhook.failing',
] as const;
export type PrivateEventType = (typeof PRIVATE_EVENT_TYPES)[number];

/** What an event is about: the resource in its data, under the name that its type begins with. */
export interface EventResource {
  /** `instance`, `port`, `ssh_key`, `api_key`, `member` or `webhook`. */
  readonly type: string;
  readonly id: string;
  /** A member's is the e-mail address, a port's its hostname. */
  readonly name: string | null;
}

/** Events of VMs, disks and egress carry their instance. */
function resourceTypeOf(event_type: string): string {
  const word = event_type.split('.')[0] ?? '';
  return word === 'vm' || word === 'disk' || word === 'egress' ? 'instance' : word;
}

/** Null where the data has no such resource. */
export function resourceOf(event_type: string, data: unknown): EventResource | null {
  const type = resourceTypeOf(event_type);
  const found = (data as Record<string, unknown>)[type] as Partial<Record<string, unknown>> | undefined;
  if (typeof found?.['id'] !== 'string') return null;
  const name = found['email'] ?? found['hostname'] ?? found['name'];
  return { type, id: found['id'], name: typeof name === 'string' ? name : null };
}

/** A public event as the event API shows it. */
export interface EventView {
  readonly id: string;
  readonly type: string;
  readonly timestamp: string;
  /** Who did it, for people: an e-mail address, or the name of a service account. Webhooks do not send it. */
  readonly actor_name: string | null;
  /** The resource as the API shows it, and these fields: */
  readonly data: Readonly<Record<string, unknown>> & {
    readonly org_id: string | null;
    readonly actor: string;
    /** Numbers the events of an instance; null for other events. */
    readonly sequence: number | null;
  };
}

export function eventView(
  event: Pick<NumberedEvent, 'id' | 'type' | 'created_at' | 'data' | 'org_id' | 'actor' | 'sequence'>,
  actor_name: string | null,
): EventView {
  const { id, type, created_at, org_id, actor, sequence } = event;
  const data = { ...(event.data as Record<string, unknown>), org_id, actor, sequence };
  return { id, type, timestamp: rfc3339(created_at), actor_name, data };
}
