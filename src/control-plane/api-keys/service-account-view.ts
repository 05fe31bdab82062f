import { rfc3339 } from '../../shared/clock.ts';
import type { ServiceAccountRow } from './service-account-store.ts';

export function serviceAccountView(row: ServiceAccountRow) {
  return { id: row.id, name: row.name, scope: row.scope, created_at: rfc3339(row.created_at) };
}
