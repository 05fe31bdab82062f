import { rfc3339 } from '../../shared/clock.ts';
import type { SshKeyRow } from './store.ts';

/** An SSH key as the API shows it. */
export function sshKeyView(row: SshKeyRow) {
  return {
    ...row,
    created_at: rfc3339(row.created_at),
    last_used_at: row.last_used_at === null ? null : rfc3339(row.last_used_at),
  };
}
