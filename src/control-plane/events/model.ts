/** The types of events. Public ones go to webhooks, the event API and notifications; private ones to notifications only. */

export const EVENT_TYPES = [
  'instance.created',
  'instance.deleted',
  'instance.forked',
  'instance.restored',
  'instance.ssh_keys_replaced',
  'vm.started',
  'vm.stopped',
  'vm.suspended',
  'vm.restarted',
  'vm.failed',
  'vm.recovered',
  'disk.flushed',
  'disk.flush_failed',
  'egress.denied',
  'port.created',
  'port.changed',
  'port.deleted',
  'ssh_key.added',
  'ssh_key.revoked',
  'api_key.created',
  'api_key.rotated',
  'api_key.revoked',
  'member.added',
  'member.removed',
  'member.role_changed',
  'webhook.disabled',
  'webhook.ping',
] as const;
export type EventType = (typeof EVENT_TYPES)[number];

export const PRIVATE_EVENT_TYPES = [
  'account.locked',
  'login.new_place',
  'mfa.added',
  'mfa.removed',
  'password.changed',
  'billing_email.changed',
  'api_key.expiring',
  'disk.nearly_full',
  'org.invited',
  'webhook.failing',
] as const;
export type PrivateEventType = (typeof PRIVATE_EVENT_TYPES)[number];
