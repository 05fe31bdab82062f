/** The kinds of notifications: how grave each is and whether it goes by mail. What each says stands in `compose.ts`. */

export const SEVERITIES = ['info', 'warning', 'critical'] as const;
export type Severity = (typeof SEVERITIES)[number];

export interface KindFacts {
  readonly severity: Severity;
  /**
   * `always`: of security, cannot be muted, and each repeat is mailed too. `on`: until the person says otherwise.
   * `elsewhere`: another mail tells of it already.
   */
  readonly mail: 'always' | 'on' | 'elsewhere';
  /** When it is raised; for the documentation. */
  readonly when: string;
  /** Who is told; for the documentation. */
  readonly whom: string;
}

const RESOURCE = "the instance's creator, owners and admins";

export const KINDS = {
  'vm.failed': {
    severity: 'critical',
    mail: 'on',
    when: 'A VM has failed: it died, panicked, or did not come up.',
    whom: RESOURCE,
  },
  'vm.recovered': {
    severity: 'warning',
    mail: 'on',
    when: 'A VM goes on from the last durable generation; what was written after it, or was in the memory of a suspended VM that could not be resumed, is lost.',
    whom: RESOURCE,
  },
  'disk.flush_failed': {
    severity: 'critical',
    mail: 'on',
    when: 'A flush has failed: asked for, final, or the first automatic one in a row. Nothing is lost; it is tried again.',
    whom: RESOURCE,
  },
  'disk.nearly_full': {
    severity: 'warning',
    mail: 'on',
    when: "More than 90 % of the guest's root file system is used; again once it was below 85 %.",
    whom: RESOURCE,
  },
  'api_key.created': {
    severity: 'info',
    mail: 'always',
    when: 'An API key was made.',
    whom: 'who made it; the service account that holds it',
  },
  'api_key.expiring': {
    severity: 'warning',
    mail: 'on',
    when: 'An API key ends within seven days; once for each key and expiry.',
    whom: "the key's maker; of a service account's key the account, owners and admins",
  },
  'ssh_key.added': {
    severity: 'info',
    mail: 'always',
    when: 'An SSH key was registered on the account; once, however many organisations it concerns.',
    whom: 'the account',
  },
  'account.locked': {
    severity: 'critical',
    mail: 'always',
    when: 'Five wrong passwords or second factors in a row: at login, sudo or another place that asks for the password.',
    whom: 'the account',
  },
  'login.new_place': {
    severity: 'warning',
    mail: 'always',
    when: 'A login from a network and browser not seen together before; never the first login.',
    whom: 'the account',
  },
  'mfa.added': {
    severity: 'critical',
    mail: 'always',
    when: 'A second factor was confirmed: an authenticator app, or a passkey, which logs in by itself.',
    whom: 'the account',
  },
  'mfa.removed': {
    severity: 'critical',
    mail: 'always',
    when: 'A confirmed second factor was removed, by the account or by the operator on the server.',
    whom: 'the account',
  },
  'password.changed': {
    severity: 'critical',
    mail: 'always',
    when: 'The password was changed, reset by mail, or reset on the server. Says how many API keys, SSH keys and factors remain (`data.remaining`).',
    whom: 'the account',
  },
  'billing_email.changed': {
    severity: 'warning',
    mail: 'always',
    when: "The organisation's billing address was changed. Both addresses get a mail of their own as well.",
    whom: 'who changed it, owners, admins and billing',
  },
  'webhook.failing': {
    severity: 'warning',
    mail: 'on',
    when: "A webhook's deliveries keep failing.",
    whom: "the webhook's creator, owners and admins",
  },
  'webhook.disabled': {
    severity: 'critical',
    mail: 'on',
    when: 'A webhook was disabled: its deliveries kept failing, its receiver said 410, or somebody disabled it.',
    whom: "the webhook's creator, owners and admins",
  },
  'org.invited': {
    severity: 'info',
    mail: 'elsewhere',
    when: 'An invitation was sent to the address of an account. Its own mail has the token.',
    whom: 'the account',
  },
  'org.role_changed': {
    severity: 'warning',
    mail: 'on',
    when: "A member's role in an organisation was changed.",
    whom: 'the member',
  },
} as const satisfies Record<string, KindFacts>;

export type Kind = keyof typeof KINDS;
export const KIND_NAMES = Object.keys(KINDS) as readonly Kind[];

/** Whether a person may have no mail of it. */
export function isMutable(kind: Kind): boolean {
  return KINDS[kind].mail === 'on';
}

/** Whether each has a mail of its own: what is critical and cannot be muted is of security. */
export function isMailedApart(kind: Kind): boolean {
  return KINDS[kind].severity === 'critical' && KINDS[kind].mail === 'always';
}

/** Once for each resource, and most of what is raised: it repeats nothing, and `notifications_repeats` is without it. */
export const RAISED_ONCE = 'api_key.created' satisfies Kind;

/** For how long repeats on one resource raise the count of a notification that is unread, from its making. */
export const REPEATS_WITHIN_S = 3_600;
/** How long notifications are kept. */
export const KEPT_DAYS = 90;
