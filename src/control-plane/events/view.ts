/** A public event as the event API shows it. */
import { rfc3339 } from '../../shared/clock.ts';
import type { NumberedEvent } from './store.ts';

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
