/** Puts what was written to the audit logs into their chains. Where another process is at one, that one does it. */
import type { AuditLog } from '../audit/append.ts';
import type { Db } from '../db/pool.ts';
import type { Log } from '../lib/log.ts';

const BATCH = 500;

/** Until no entry waits. */
export async function sealAudit(db: Db, audit: AuditLog, log: Log): Promise<void> {
  for (;;) {
    const { sealed, refused } = await audit.seal(db, BATCH);
    if (refused.length > 0) {
      log.error({ entries: refused }, 'audit entries were altered before they were sealed');
    }
    if (sealed + refused.length < BATCH) return;
  }
}
