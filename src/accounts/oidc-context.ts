import type { AuditLog } from '../audit/append.ts';
import type { OidcProvider } from '../auth/oidc/provider.ts';
import type { Db } from '../db/pool.ts';
import type { QuotaLimits } from '../lib/quotas.ts';
import type { Sealer } from '../lib/seal.ts';

/** What a login at the provider, and the checks after it, need. */
export interface OidcContext {
  readonly db: Db;
  readonly audit: AuditLog;
  readonly quotas: QuotaLimits;
  readonly signups: 'open' | 'closed';
  readonly provider: OidcProvider;
  /** Seals refresh tokens. */
  readonly identities: Sealer;
}
