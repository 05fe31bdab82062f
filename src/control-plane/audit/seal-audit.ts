/** Puts the entries of the audit logs into their chains, until none waits. */

import type { Db } from '../db/pool.ts';
import type { AuditLog } from './append.ts';

const BATCH = 500;

export async function sealAudit(db: Db, audit: AuditLog): Promise<void> {
  while ((await audit.seal(db, BATCH)) === BATCH);
}
