import { rfc3339 } from '../lib/clock.ts';
import type { ServiceAccountRow } from './store.ts';

export function serviceAccountView(row: ServiceAccountRow) {
  return { id: row.id, name: row.name, scope: row.scope, created_at: rfc3339(row.created_at) };
}
