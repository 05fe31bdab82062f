/**
 * Defines the kinds of notifications: how severe they are, whether they are mailed, and their rows in
 * docs/notifications.md. Their texts are in compose.ts. Pure.
 */
import { rfc3339 } from '../../shared/clock.ts';
import type { NotificationRow } from './store.ts';

export const SEVERITIES = ['info', 'warning', 'critical'] as const;
export type Severity = (typeof SEVERITIES)[number];

export interface KindFacts {
  readonly severity: Severity;
  /**
   * `always`: a security kind; it cannot be muted, and each repeat is mailed. `on`: until the user mutes it.
   * `elsewhere`: there is another mail about it.
   */
  readonly mail: 'always' | 'on' | 'elsewhere';
  /** When it is raised, for the documentation. */
  readonly when: string;
  /** Who gets it, for the documentation. */
  readonly recipients: string;
}

const RESOURCE = "the instance's creator, owners and admins";

export const KINDS = {
  'vm.failed': {
    severity: 'critical',
    mail: 'on',
    when: 'A VM has failed: it died, panicked, or did not come up. Or a suspended one could not be resumed; its memory is kept.',
    recipients: RESOURCE,
  },
  'vm.recovered': {
    severity: 'warning',
    mail: 'on',
    when: 'A VM continues from its last saved generation, or was started again after it had failed. Later writes, or what was in memory, are lost.',
    recipients: RESOURCE,
  },
  'disk.flush_failed': {
    severity: 'critical',
    mail: 'on',
    when: 'A flush has failed: one that was requested, the last one before a stop, or the first automatic one in a row. Nothing is lost; it is tried again.',
    recipients: RESOURCE,
  },
  'disk.nearly_full': {
    severity: 'warning',
    mail: 'on',
    when: "More than 90 % of the guest's root file system is used. Raised again after it was below 85 %.",
    recipients: RESOURCE,
  },
  'api_key.created': {
    severity: 'info',
    mail: 'always',
    when: 'An API key was created.',
    recipients: 'its creator; the service account that holds it',
  },
  'api_key.expiring': {
    severity: 'warning',
    mail: 'on',
    when: 'An API key expires within seven days. Once for each key and expiry.',
    recipients: "the key's creator; for a service account's key the account, owners and admins",
  },
  'ssh_key.added': {
    severity: 'info',
    mail: 'always',
    when: 'An SSH key was added to the account.',
    recipients: 'the account',
  },
  'account.locked': {
    severity: 'critical',
    mail: 'always',
    when: 'A wrong password or second factor was entered five times in a row.',
    recipients: 'the account',
  },
  'login.new_place': {
    severity: 'warning',
    mail: 'always',
    when: 'A login from a network and a browser that were not used together before.',
    recipients: 'the account',
  },
  'mfa.added': {
    severity: 'critical',
    mail: 'always',
    when: 'A second factor was added: an authenticator app or a passkey.',
    recipients: 'the account',
  },
  'mfa.removed': {
    severity: 'critical',
    mail: 'always',
    when: 'A second factor was removed, by the account or by the operator of the server.',
    recipients: 'the account',
  },
  'password.changed': {
    severity: 'critical',
    mail: 'always',
    when: 'The password was changed, reset by mail, or reset on the server. Says how many API keys, SSH keys and second factors still work.',
    recipients: 'the account',
  },
  'billing_email.changed': {
    severity: 'warning',
    mail: 'always',
    when: "The organisation's billing address was changed. Both addresses get a separate mail, too.",
    recipients: 'the member who changed it, owners, admins and billing',
  },
  'webhook.failing': {
    severity: 'warning',
    mail: 'on',
    when: "A webhook's deliveries keep failing.",
    recipients: "the webhook's creator, owners and admins",
  },
  'webhook.disabled': {
    severity: 'critical',
    mail: 'on',
    when: 'A webhook was disabled: its deliveries kept failing, its receiver answered 410, or a member disabled it.',
    recipients: "the webhook's creator, owners and admins",
  },
  'org.invited': {
    severity: 'info',
    mail: 'elsewhere',
    when: 'The account was invited to an organisation. Another mail has the link.',
    recipients: 'the account',
  },
  'org.role_changed': {
    severity: 'warning',
    mail: 'on',
    when: "A member's role in an organisation was changed.",
    recipients: 'the member',
  },
} as const satisfies Record<string, KindFacts>;

export type NotificationKind = keyof typeof KINDS;
export const KIND_NAMES = Object.keys(KINDS) as readonly NotificationKind[];

/** Whether a user can switch off its mail. */
export function isMutable(kind: NotificationKind): boolean {
  return KINDS[kind].mail === 'on';
}

/** Whether each notification has a separate mail: the critical kinds of security. */
export function isMailedApart(kind: NotificationKind): boolean {
  return KINDS[kind].severity === 'critical' && KINDS[kind].mail === 'always';
}

/** The most frequent kind. It is raised once for each resource, so the index `notifications_repeats` leaves it out. */
export const RAISED_ONCE = 'api_key.created' satisfies NotificationKind;

/** How long after its creation an unread notification counts repeats on the same resource. */
export const REPEATS_WITHIN_S = 3_600;
/** How long notifications are kept. */
export const KEPT_DAYS = 90;

/** A notification as the API shows it. */
export function notificationView(row: NotificationRow) {
  const { resource_type, resource_id } = row;
  return {
    id: row.id,
    kind: row.kind,
    severity: KINDS[row.kind].severity,
    title: row.title,
    body: row.body,
    resource: resource_type === null ? null : { type: resource_type, id: resource_id ?? '' },
    data: row.data,
    count: row.count,
    created_at: rfc3339(row.created_at),
    read_at: row.read_at === null ? null : rfc3339(row.read_at),
  };
}
