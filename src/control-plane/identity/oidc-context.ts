import type { QuotaLimits } from '../../shared/quotas.ts';
import type { Sealer } from '../../shared/seal.ts';
import type { AuditLog } from '../audit/append.ts';
import type { Db } from '../db/pool.ts';
import type { OidcProvider } from './oidc/provider.ts';

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
