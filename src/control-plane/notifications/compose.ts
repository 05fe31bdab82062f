/**
 * Composes a notification from an event: its texts, its data, and who gets it. Most events raise no notification. The
 * texts contain names that people chose, and never a secret. Pure.
 */
import { programName } from '../../../client/src/words.ts';
import type { OrgId } from '../../shared/ids.ts';
import type { EventType, PrivateEventType } from '../events/model.ts';
import type { NumberedEvent } from '../events/store.ts';
import type { NotificationKind } from './model.ts';

export interface Audience {
  /** Users and service accounts by id; where `org_id` is set, only its members. */
  readonly holders: readonly string[];
  /** And the members with one of these roles. */
  readonly roles: readonly ('owner' | 'admin' | 'billing')[];
  /** Null: the notification concerns the holders' accounts. */
  readonly org_id: OrgId | null;
}

export interface Content {
  readonly kind: NotificationKind;
  readonly title: string;
  readonly body: string;
  readonly resource: { readonly type: string; readonly id: string } | null;
  readonly data: Record<string, unknown>;
  readonly audience: Audience;
  /** Addresses that get another mail about it. */
  readonly mailed: readonly string[];
}

type Composer = (event: NumberedEvent, data: Json) => Content | null;
type Json = Readonly<Record<string, unknown>>;

/** A scope as a person reads it. */
const permissions = (scope: string) =>
  scope === '*' ? 'It has all permissions.' : `Its permissions are ${scope}.`;

const MAX_TITLE = 200;
const MAX_BODY = 1_000;

/** False if {@link compose} returns null for every event of this type. */
export function raisesNotification({ type }: Pick<NumberedEvent, 'type'>): boolean {
  return Object.hasOwn(COMPOSERS, type);
}

/** @returns null if the event raises no notification */
export function compose(event: NumberedEvent): Content | null {
  const composer = COMPOSERS[event.type as EventType | PrivateEventType];
  const content = composer?.(event, objectOf(event.data)) ?? null;
  if (content === null) return null;
  const org = event.org_id === null ? {} : { org_id: event.org_id };
  return {
    ...content,
    title: cut(content.title, MAX_TITLE),
    body: cut(content.body, MAX_BODY),
    data: { ...content.data, ...org },
  };
}

const ADMINS = ['owner', 'admin'] as const;

const COMPOSERS: Partial<Record<EventType | PrivateEventType, Composer>> = {
  'vm.failed': (event, data) =>
    ofInstance(event, data, 'vm.failed', (name, reason) => [
      `The VM of ${name} has failed`,
      `${reason.message} The next start continues with what it had written.`,
      { reason },
    ]),
  'vm.suspended': (event, data) => {
    const { reason } = objectOf(objectOf(data['instance'])['vm']);
    if (objectOf(reason)['code'] !== 'resume_failed') return null;
    return ofInstance(event, data, 'vm.failed', (name, why) => [
      `The VM of ${name} could not be resumed`,
      why.message,
      { reason: why },
    ]);
  },
  'vm.recovered': (event, data) =>
    ofInstance(event, data, 'vm.recovered', (name, reason) => [
      `The VM of ${name} was recovered`,
      reason.message,
      { reason, generation: objectOf(objectOf(data['instance'])['disk'])['generation'] },
    ]),
  'disk.flush_failed': (event, data) => {
    const error = objectOf(data['error']);
    const cause = data['cause'];
    // A flush cannot save what the host no longer has.
    const kept =
      error['code'] === 'vm_gone' ? '' : ' Nothing is lost: the next flush also saves what this one did not.';
    return ofInstance(event, data, 'disk.flush_failed', (name) => [
      `A flush of ${name} has failed`,
      `${text(error['message'])}${kept}`,
      { error, cause },
    ]);
  },
  'disk.nearly_full': (event, data) => {
    const { used_bytes, total_bytes } = objectOf(data['filesystem']) as Record<string, number>;
    const percent = Math.floor((100 * (used_bytes ?? 0)) / Math.max(1, total_bytes ?? 1));
    return ofInstance(event, data, 'disk.nearly_full', (name) => [
      `The disk of ${name} is nearly full`,
      `${percent} % of its root file system is used. Delete files, or enlarge the disk while the VM is stopped.`,
      { used_bytes, total_bytes },
    ]);
  },
  'api_key.created': (event, data) => {
    const key = objectOf(data['api_key']);
    const holder = key['service_account_id'];
    return {
      kind: 'api_key.created',
      title: `API key "${text(key['name'])}" was created`,
      body: `${permissions(text(key['scope']))} Its last characters are ${text(key['last4'])}. If that was not you, revoke it and change your password.`,
      resource: { type: 'api_key', id: text(key['id']) },
      data: { api_key: shown(key, ['id', 'name', 'scope', 'service_account_id', 'expires_at']) },
      audience: within(event.org_id, [event.actor, ...(typeof holder === 'string' ? [holder] : [])]),
      mailed: [],
    };
  },
  'api_key.expiring': (event, data) => {
    const key = objectOf(data['api_key']);
    const holder = event.user_id ?? text(key['service_account_id']);
    return {
      kind: 'api_key.expiring',
      title: `API key "${text(key['name'])}" expires soon`,
      body: `It expires at ${text(key['expires_at'])}. Create a new key before then, and replace this one wherever it is used.`,
      resource: { type: 'api_key', id: text(key['id']) },
      data: { api_key: shown(key, ['id', 'name', 'service_account_id', 'expires_at']) },
      audience: within(event.org_id, [holder], event.user_id === null ? ADMINS : []),
      mailed: [],
    };
  },
  'ssh_key.added': (event, data) => {
    // Other organisations of the key have the event without `user_id`; the account gets one notification.
    if (event.user_id === null) return null;
    const key = objectOf(data['ssh_key']);
    const bound = typeof key['org_id'] === 'string';
    const where = bound ? 'your instances in this organisation' : 'your instances';
    return {
      kind: 'ssh_key.added',
      title: `SSH key "${text(key['name'])}" was added`,
      body: `${text(key['fingerprint'])} can log in to ${where}. If that was not you, remove it and ${bound ? 'revoke the API key that added it' : 'change your password'}.`,
      resource: { type: 'ssh_key', id: text(key['id']) },
      data: { ssh_key: shown(key, ['id', 'name', 'fingerprint', 'org_id']) },
      audience: bound ? within(event.org_id, [event.user_id]) : ofAccount([event.user_id]),
      mailed: [],
    };
  },
  'account.locked': (event, data) =>
    ofOwnAccount(event, data, 'account.locked', [
      'Your account is locked',
      `Somebody entered a wrong password or second factor five times in a row${from(data)}. Nobody can log in until ${text(data['locked_until'])}; a password reset unlocks the account.`,
    ]),
  'login.new_place': (event, data) =>
    ofOwnAccount(
      event,
      data,
      'login.new_place',
      [
        'A login from a new place',
        `Somebody logged in${from(data)}, with ${programName(text(data['user_agent']))}. If that was not you, end that session and change your password now.`,
      ],
      { type: 'session', id: text(data['session_id']) },
    ),
  'mfa.added': (event, data) =>
    ofFactor(event, data, 'mfa.added', (factor) => [
      'A second factor was added to your account',
      `The ${factor} was added${from(data)}. If that was not you, remove it, end the sessions that are not yours, and change your password now: a new password alone removes no factor.`,
    ]),
  'mfa.removed': (event, data) =>
    ofFactor(event, data, 'mfa.removed', (factor) => [
      'A second factor was removed from your account',
      `The ${factor} was removed${event.actor === 'operator' ? ' by the operator of the server' : from(data)}. If that was not you, change your password now, end the sessions that are not yours, and add a factor again.`,
    ]),
  'password.changed': (event, data) =>
    ofOwnAccount(event, data, 'password.changed', [
      'Your password was changed',
      `The password of this account was ${HOW_CHANGED[text(data['how'])] ?? 'changed'}, and its other sessions have ended. ${remaining(data)} If it was not you, reset it now.${text(data['how']) === 'first_reset' ? UNCONFIRMED_BEFORE : ''}`,
    ]),
  'billing_email.changed': (event, data) => {
    const organisation = objectOf(data['organisation']);
    const [previous, now] = [text(data['previous']), text(data['billing_email'])];
    return {
      kind: 'billing_email.changed',
      title: `The billing address of ${text(organisation['name'])} was changed`,
      body: `From ${previous} to ${now}. If you did not expect this, look at the audit log of the organisation.`,
      resource: { type: 'organisation', id: text(organisation['id']) },
      data: { organisation, previous, billing_email: now },
      audience: within(event.org_id, [event.actor], ['owner', 'admin', 'billing']),
      mailed: [previous, now],
    };
  },
  'webhook.failing': (event, data) =>
    ofWebhook(event, data, 'webhook.failing', (name) => [
      `Deliveries to the webhook "${name}" are failing`,
      'Berth tries them again. If all deliveries fail for five days, it disables the webhook.',
    ]),
  'webhook.disabled': (event, data) =>
    ofWebhook(event, data, 'webhook.disabled', (name) => [
      `The webhook "${name}" was disabled`,
      WHY_DISABLED[text(objectOf(data['webhook'])['disabled_reason'])] ?? '',
    ]),
  'org.invited': (event, data) => {
    const organisation = objectOf(data['organisation']);
    return {
      kind: 'org.invited',
      title: `You are invited to ${text(organisation['name'])}`,
      body: `As ${text(data['role'])}. To join, open the link that was sent to you.`,
      resource: { type: 'organisation', id: text(organisation['id']) },
      data: { organisation, role: data['role'], invitation_id: data['invitation_id'] },
      audience: ofAccount([event.user_id ?? '']),
      mailed: [],
    };
  },
  'member.role_changed': (event, data) => {
    const member = objectOf(data['member']);
    return {
      kind: 'org.role_changed',
      title: `Your role is now ${text(member['role'])}`,
      body: `It was ${text(data['previous_role'])} before, in the organisation ${event.org_id ?? ''}.`,
      resource: { type: 'organisation', id: event.org_id ?? '' },
      data: { role: member['role'], previous_role: data['previous_role'] },
      audience: within(event.org_id, [text(member['id'])]),
      mailed: [],
    };
  },
};

const HOW_CHANGED: Readonly<Record<string, string>> = {
  changed: 'changed',
  reset: 'reset by mail',
  first_reset: 'reset by mail',
  server: 'reset on the server',
};

const UNCONFIRMED_BEFORE =
  ' Your address had not been confirmed before, so somebody else may have created this account: its keys and second factors were removed. Check its organisations, their members and webhooks, or delete the account.';

/** Credentials that a new password does not revoke. */
function remaining(data: Json): string {
  const { api_keys, ssh_keys, factors } = objectOf(data['remaining']) as Record<string, number>;
  const counts = [
    counted(api_keys, 'API key'),
    counted(ssh_keys, 'SSH key'),
    counted(factors, 'second factor'),
  ].join(', ');
  const none = !api_keys && !ssh_keys && !factors;
  return none
    ? 'It has no API keys, SSH keys or second factors.'
    : `These still work: ${counts}. Remove those that are not yours; a reset by mail can remove all of them.`;
}

function counted(count: number | undefined, noun: string): string {
  return `${count ?? 0} ${noun}${count === 1 ? '' : 's'}`;
}

interface ShownReason {
  readonly code: string;
  readonly message: string;
}

function ofInstance(
  event: NumberedEvent,
  data: Json,
  kind: NotificationKind,
  texts: (name: string, reason: ShownReason) => readonly [string, string, Json],
): Content {
  const instance = objectOf(data['instance']);
  const found = objectOf(objectOf(instance['vm'])['reason']);
  const reason = { code: text(found['code']), message: text(found['message']) };
  const [title, body, more] = texts(text(instance['name']), reason);
  return {
    kind,
    title,
    body,
    resource: { type: 'instance', id: event.instance_id ?? '' },
    data: { instance: shown(instance, ['id', 'name']), ...more },
    audience: within(event.org_id, [text(instance['created_by'])], ADMINS),
    mailed: [],
  };
}

const WHY_DISABLED: Readonly<Record<string, string>> = {
  failing:
    'Every delivery has failed for five days. Enable it again once its receiver answers, and replay the deliveries that it missed.',
  gone: 'Its receiver answered 410 Gone, which means that it wants no more deliveries.',
  requested: 'A member of the organisation disabled it. Nothing is sent until it is enabled again.',
};

function ofWebhook(
  event: NumberedEvent,
  data: Json,
  kind: NotificationKind,
  texts: (name: string) => readonly [string, string],
): Content {
  const webhook = objectOf(data['webhook']);
  const [title, body] = texts(text(webhook['name']));
  return {
    kind,
    title,
    body,
    resource: { type: 'webhook', id: text(webhook['id']) },
    data: { webhook: shown(webhook, ['id', 'name', 'url']) },
    audience: within(event.org_id, [text(webhook['created_by'])], ADMINS),
    mailed: [],
  };
}

function ofOwnAccount(
  event: NumberedEvent,
  data: Json,
  kind: NotificationKind,
  [title, body]: readonly [string, string],
  resource?: { readonly type: string; readonly id: string },
): Content {
  const user_id = event.user_id ?? '';
  return {
    kind,
    title,
    body,
    resource: resource ?? { type: 'user', id: user_id },
    data: { ...data },
    audience: ofAccount([user_id]),
    mailed: [],
  };
}

function ofFactor(
  event: NumberedEvent,
  data: Json,
  kind: NotificationKind,
  texts: (factor: string) => readonly [string, string],
): Content {
  const factor = objectOf(data['factor']);
  const what = factor['type'] === 'totp' ? 'authenticator app' : 'passkey';
  const resource = { type: 'mfa_factor', id: text(factor['id']) };
  return ofOwnAccount(event, data, kind, texts(`${what} "${text(factor['name'])}"`), resource);
}

function within(org_id: OrgId | null, holders: readonly string[], roles: Audience['roles'] = []): Audience {
  return { holders: [...new Set(holders)], roles, org_id };
}

function ofAccount(holders: readonly string[]): Audience {
  return { holders, roles: [], org_id: null };
}

function from(data: Json): string {
  return typeof data['ip'] === 'string' ? `, from the address ${data['ip']}` : '';
}

function objectOf(value: unknown): Json {
  return typeof value === 'object' && value !== null ? (value as Json) : {};
}

function text(value: unknown): string {
  return typeof value === 'string' ? value : '';
}

function shown(of: Json, names: readonly string[]): Json {
  return Object.fromEntries(names.filter((name) => name in of).map((name) => [name, of[name]]));
}

function cut(long: string, most: number): string {
  return long.length <= most ? long : `${long.slice(0, most - 1).toWellFormed()}…`;
}
