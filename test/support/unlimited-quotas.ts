import { allQuotas, QUOTA_DEFAULTS, type QuotaLimits } from '../../src/lib/quotas.ts';

/** Of test installations: organisations have what the first one has, which tests are about. Accounts have the defaults. */
export const UNLIMITED_ORGANISATIONS: QuotaLimits = { ...QUOTA_DEFAULTS, ...allQuotas(null) };
