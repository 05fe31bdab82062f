/**
 * Defines the quotas of organisations and accounts, with their defaults and the text of a refusal.
 * BERTH_QUOTA_DEFAULTS, `berth org quota` and the API use these names. Pure.
 */
import { AppError } from './errors.ts';

export const ORGANISATION_QUOTAS = [
  'instances',
  'cpus',
  'memory_mib',
  'disk_gib',
  'api_keys',
  'service_accounts',
  'webhooks',
  'streams',
] as const;
const ACCOUNT_QUOTAS = ['organisations', 'sessions', 'ssh_keys', 'factors'] as const;
export const QUOTAS = [...ORGANISATION_QUOTAS, ...ACCOUNT_QUOTAS] as const;

export type OrganisationQuota = (typeof ORGANISATION_QUOTAS)[number];
export type AccountQuota = (typeof ACCOUNT_QUOTAS)[number];
export type Quota = (typeof QUOTAS)[number];

/** Null: unlimited. */
export type Limit = number | null;
export type QuotaLimits = Readonly<Record<Quota, Limit>>;

/** What an organisation's row has of its own; a quota that is absent is the default. */
export type OwnQuotas = Readonly<Partial<Record<OrganisationQuota, Limit>>>;

export const QUOTA_DEFAULTS: QuotaLimits = {
  instances: 20,
  cpus: 32,
  memory_mib: 64 * 1024,
  disk_gib: 512,
  api_keys: 100,
  service_accounts: 50,
  webhooks: 20,
  streams: 100,
  organisations: 5,
  sessions: 50,
  ssh_keys: 50,
  factors: 10,
};

/** The quotas of an organisation that all have one limit. */
export function allQuotas(limit: Limit): OwnQuotas {
  return Object.fromEntries(ORGANISATION_QUOTAS.map((quota) => [quota, limit]));
}

export const UNLIMITED = 'unlimited';
const MAX_LIMIT = 2 ** 31 - 1;

export function isLimit(limit: Limit): boolean {
  return limit === null || (Number.isSafeInteger(limit) && limit >= 0 && limit <= MAX_LIMIT);
}

/** A whole number or `unlimited`; undefined for any other text. */
export function parseLimit(text: string): Limit | undefined {
  if (text === UNLIMITED) return null;
  if (!/^[0-9]{1,10}$/.test(text)) return undefined;
  const limit = Number(text);
  return isLimit(limit) ? limit : undefined;
}

/** What counts, where the name does not say it, and what frees some of it. */
const FREED_BY: Readonly<Record<Quota, string>> = {
  instances: 'Delete an instance',
  cpus: 'It counts VMs that run. Stop one',
  memory_mib: 'It counts VMs that run. Stop one',
  disk_gib: 'Delete an instance',
  api_keys: 'It counts expired keys too. Revoke one',
  service_accounts: 'Delete a service account',
  webhooks: 'Delete a webhook',
  streams: 'It counts event streams, notification streams and consoles. Close one',
  organisations: 'It counts those that the account made. Delete one, by leaving it as its last member',
  sessions: 'End one from another session, or reset the password, which ends all',
  ssh_keys: 'Revoke an SSH key',
  factors: 'It counts unconfirmed factors too. Remove one',
};

function isOfAccount(quota: Quota): quota is AccountQuota {
  return ACCOUNT_QUOTAS.some((each) => each === quota);
}

export function isWithin(limit: Limit, used: number, wanted = 1): boolean {
  return limit === null || wanted <= 0 || used + wanted <= limit;
}

/** @throws AppError QUOTA_EXCEEDED naming the quota, where `wanted` on top of `used` is past `limit` */
export function requireWithin(quota: Quota, limit: Limit, used: number, wanted = 1): void {
  if (isWithin(limit, used, wanted)) return;
  throw new AppError('QUOTA_EXCEEDED', quotaRefusal(quota, limit, used, wanted));
}

/** What a refusal says: the quota, its use, and what to do. */
function quotaRefusal(quota: Quota, limit: Limit, used: number, wanted = 1) {
  const [whose, setting] = isOfAccount(quota)
    ? ["The account's", 'BERTH_QUOTA_DEFAULTS']
    : ["The organisation's", 'berth org quota'];
  return {
    message:
      `${whose} quota of ${quota} is ${limit}: ${used} used, ${wanted} more wanted. ` +
      `${FREED_BY[quota]}, or ask the operator for more (${setting}).`,
    details: [{ field: quota, issue: `quota ${limit}, used ${used}, wanted ${wanted}` }],
  };
}
