/** The audit log for people: the actions to filter by, and what an entry says beside its action and target. */

import { programName } from './user-agents.ts';

/** A test compares them with what the server writes. */
export const AUDIT_ACTIONS: readonly string[] = [
  ...['account.change', 'account.confirm_email', 'account.delete'],
  ...['api_key.create', 'api_key.revoke', 'api_key.rotate'],
  ...['auth.change_password', 'auth.end_reused_session', 'auth.login', 'auth.logout', 'auth.register'],
  ...['auth.reset_mfa_on_server', 'auth.reset_password', 'auth.reset_password_on_server'],
  ...['auth.revoke_other_sessions', 'auth.revoke_session', 'auth.sudo', 'auth.unlock'],
  ...['disk.export', 'disk.import', 'generation.change'],
  ...['exec.attach', 'exec.create', 'exec.kill', 'exec.signal'],
  ...['host.add', 'host.drain', 'host.remove', 'host.set', 'host.undrain'],
  ...['image.add', 'image.build', 'image.remove'],
  ...['instance.change', 'instance.create', 'instance.delete', 'instance.fork', 'instance.replace_ssh_keys'],
  ...['instance.restore', 'invitation.accept', 'invitation.create', 'invitation.delete'],
  ...['member.change_role', 'member.remove', 'mfa.add', 'mfa.confirm', 'mfa.remove'],
  ...['notifications.set_preferences', 'org.change', 'org.change_billing_email', 'org.change_quota'],
  ...['org.create', 'port.add_hostname', 'port.change', 'port.create', 'port.delete', 'port.open'],
  ...[
    'port.remove_hostname',
    'service_account.create',
    'service_account.delete',
    'ssh_key.add',
    'ssh_key.revoke',
  ],
  ...['vm.console', 'vm.exec', 'vm.flush', 'vm.forward', 'vm.restart', 'vm.start', 'vm.stop', 'vm.suspend'],
  ...['webhook.change', 'webhook.create', 'webhook.delete', 'webhook.ping', 'webhook.redeliver'],
  ...['webhook.replay', 'webhook.rotate_secret'],
];

/** Facts that the entry shows elsewhere, or that tell people nothing. */
const LEFT_OUT: readonly string[] = ['credential', 'vm_id', 'flush_id', 'user_id'];
const MAX_VALUE = 80;

/** What changed: `cpus: 4, memory_mib: 2048`; empty if the entry has no such facts. @param target_name is not repeated */
export function auditDetails(data: Readonly<Record<string, unknown>>, target_name: string | null): string {
  return factsOf(data)
    .filter(([name, value]) => !LEFT_OUT.includes(name) && (target_name === null || value !== target_name))
    .map(([name, value]) =>
      name === 'user_agent' ? programName(String(value)) : `${name}: ${short(textOf(value))}`,
    )
    .join(', ');
}

/** The fields of a change are facts of the entry itself. Outside of one, what is not set tells nothing. */
function factsOf(data: Readonly<Record<string, unknown>>): readonly (readonly [string, unknown])[] {
  return Object.entries(data).flatMap(([name, value]): readonly (readonly [string, unknown])[] => {
    if (name === 'change' && isRecord(value)) return Object.entries(value);
    const is_unset = value === null || (name === 'allowed_cidrs' && textOf(value) === 'none');
    return is_unset ? [] : [[name, value]];
  });
}

function textOf(value: unknown): string {
  if (value === null || value === '') return 'none';
  if (Array.isArray(value)) return value.length === 0 ? 'none' : value.map(textOf).join(' ');
  if (isRecord(value))
    return (
      Object.entries(value)
        .map(([name, each]) => `${name}=${textOf(each)}`)
        .join(' ') || 'none'
    );
  return String(value);
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

function short(text: string): string {
  return text.length > MAX_VALUE ? `${text.slice(0, MAX_VALUE - 1).toWellFormed()}…` : text;
}
