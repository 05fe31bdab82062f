import { rfc3339 } from '../../shared/clock.ts';
import { KINDS } from './model.ts';
import type { NotificationRow } from './store.ts';

/** A notification as the API shows it. */
export function notificationView(row: NotificationRow) {
  const { resource_type, resource_id } = row;
  return {
    id: row.id,
    kind: row.kind,
    severity: KINDS[row.kind].severity,
    title: row.title,
    body: row.body,
    resource: resource_type === null ? null : { type: resource_type, id: resource_id ?? '' },
    data: row.data,
    count: row.count,
    created_at: rfc3339(row.created_at),
    read_at: row.read_at === null ? null : rfc3339(row.read_at),
  };
}
