import { rfc3339 } from '../../shared/clock.ts';
import type { ApiKeyRow } from './store.ts';

/** A key as the API shows it, without the secret. */
export function apiKeyView(row: ApiKeyRow) {
  return {
    id: row.id,
    name: row.name,
    scope: row.scope,
    service_account_id: row.service_account_id,
    allowed_cidrs: row.allowed_cidrs,
    prefix: row.prefix,
    last4: row.last4,
    created_at: rfc3339(row.created_at),
    last_used_at: timeOrNull(row.last_used_at),
    expires_at: timeOrNull(row.expires_at),
    previous_expires_at: timeOrNull(row.previous_expires_at),
    created_by_key: row.created_by_key,
  };
}

function timeOrNull(time: Date | null): string | null {
  return time === null ? null : rfc3339(time);
}
