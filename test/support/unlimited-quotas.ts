import { allQuotas, QUOTA_DEFAULTS, type QuotaLimits } from '../../src/shared/quotas.ts';

/** The tests' quotas: every organisation has those of the first one. Accounts have the defaults. */
export const UNLIMITED_ORGANISATIONS: QuotaLimits = { ...QUOTA_DEFAULTS, ...allQuotas(null) };
