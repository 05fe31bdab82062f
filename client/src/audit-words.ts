/**
 * Formats the audit log for people. The command line and the console share it:
 *
 * - `AUDIT_ACTIONS`: the actions by which the log can be filtered.
 * - `auditDetails`: an entry's further facts as text, such as `cpus: 4, memory: 2 GiB`, without the target's name.
 * - `auditIds`: the ids in an entry for which the caller looks up names.
 */
import { durationText, programName } from './words.ts';

/** A test compares them with what the server writes. */
export const AUDIT_ACTIONS: readonly string[] = [
  ...['account.change', 'account.confirm_email', 'account.delete'],
  ...['api_key.create', 'api_key.revoke', 'api_key.rotate'],
  ...['auth.change_password', 'auth.confirm_device_login', 'auth.refuse_device_login'],
  ...['auth.end_reused_session', 'auth.end_sessions_by_provider'],
  ...['auth.link_identity', 'auth.login', 'auth.logout', 'auth.register', 'auth.register_at_provider'],
  ...['auth.reset_mfa_on_server', 'auth.reset_password', 'auth.reset_password_on_server'],
  ...[
    'auth.revoke_other_sessions',
    'auth.revoke_session',
    'auth.sudo',
    'auth.unlink_identity',
    'auth.unlock',
  ],
  ...['certificate.renew', 'disk.export', 'disk.import', 'generation.change'],
  ...['exec.attach', 'exec.create', 'exec.kill', 'exec.signal'],
  ...['file.create_directory', 'file.delete', 'file.move', 'file.write'],
  ...[
    'host.add',
    'host.cordon',
    'host.drain',
    'host.remove',
    'host.replace',
    'host.rotate',
    'host.set',
    'host.uncordon',
  ],
  ...['ingress.add', 'ingress.remove'],
  ...['image.add', 'image.build', 'image.remove'],
  ...['instance.change', 'instance.create', 'instance.delete', 'instance.fork', 'instance.replace_ssh_keys'],
  ...['instance.restore', 'invitation.accept', 'invitation.create', 'invitation.delete'],
  ...['member.add_by_group', 'member.change_role', 'member.change_role_by_group', 'member.keep_last_owner'],
  ...['member.remove', 'member.remove_by_group', 'mfa.add', 'mfa.confirm', 'mfa.remove'],
  ...['notifications.set_preferences', 'org.change', 'org.change_billing_email', 'org.change_quota'],
  ...['org.create', 'port.add_hostname', 'port.change', 'port.create', 'port.delete', 'port.open'],
  ...[
    'port.remove_hostname',
    'secret.delete',
    'secret.set',
    'secret_key.forget',
    'secret_key.rotate',
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
const LEFT_OUT: readonly string[] = [
  ...['credential', 'vm_id', 'flush_id', 'user_id', 'id', 'instance_id', 'created_at', 'updated_at'],
];

/** The part of an entry that its details come from. */
export interface AuditFacts {
  readonly action: string;
  readonly data: Readonly<Record<string, unknown>>;
  readonly target_name: string | null;
}

type NameOf = (id: string) => string | undefined;

/** What changed, in the words of options: `cpus: 4, memory: 2 GiB`; empty if the entry has no such facts. */
export function auditDetails(
  { action, data, target_name }: AuditFacts,
  nameOf: NameOf = () => undefined,
): string {
  const is_change = action.includes('.change');
  return factsOf(data, is_change)
    .filter(([name, value]) => !LEFT_OUT.includes(name) && (is_change || value !== target_name))
    .map(([name, value]) =>
      // A quota without a number has no limit.
      factText(name, action === 'org.change_quota' ? (value ?? 'unlimited') : value, nameOf),
    )
    .filter((text) => text !== '')
    .join(', ');
}

/** The ids in the details of an entry that stand for a name. */
export function auditIds({ data }: Pick<AuditFacts, 'data'>): readonly string[] {
  return Object.values(data)
    .flat()
    .filter((value) => typeof value === 'string' && ID.test(value)) as string[];
}

/** The fields of a change are facts of the entry itself. Outside of one, what is not set tells nothing. */
function factsOf(
  data: Readonly<Record<string, unknown>>,
  is_change: boolean,
): readonly (readonly [string, unknown])[] {
  const { change, hostname, url, ...rest } = data;
  // The URL of a port contains its hostname.
  const places = url === undefined ? { hostname } : { url };
  const all = Object.entries({ ...rest, ...places, ...(isRecord(change) ? change : {}) });
  return all.filter(([name, value]) => {
    if (value === undefined || (name === 'ssh_keys' && data['mode'] === 'account')) return false;
    const is_unset = value === null || value === false || textOf(value) === 'none';
    return !is_unset || is_change || SAYS_NONE.includes(name);
  });
}

/** Facts that are told also when they are empty. */
const SAYS_NONE: readonly string[] = ['ssh_keys', 'mail'];

/** Names and values of the API as people type and read them. Others: the name with spaces. */
const WORDS: Readonly<Record<string, (value: unknown, nameOf: NameOf) => string>> = {
  memory_mib: (value) => `memory: ${sizeText(value)}`,
  disk_gib: (value) => `disk: ${typeof value === 'number' ? `${value} GiB` : textOf(value)}`,
  auto_flush_seconds: (value) => `auto-flush: ${secondsText(value)}`,
  idle_timeout_seconds: (value) => `idle-timeout: ${secondsText(value)}`,
  grace_seconds: (value) => (value === 0 ? '' : `grace: ${secondsText(value)}`),
  wake_on_connect: (value) => `wake: ${value === true ? 'on' : 'off'}`,
  egress_mode: (value) => `egress: ${textOf(value)}`,
  egress_allow: (value) => `allow: ${textOf(value)}`,
  keep_last: (value) => `keep: ${textOf(value)}`,
  keep_daily_days: (value) => `keep daily: ${value} days`,
  scope: (value) => `scope: ${value === '*' ? 'all permissions' : textOf(value)}`,
  allowed_cidrs: (value) => `from: ${textOf(value)}`,
  expires_at: (value) => `expires: ${timeText(value)}`,
  since: (value) => `since: ${timeText(value)}`,
  service_account_id: (value, nameOf) => `service account: ${nameText(value, nameOf)}`,
  from: (value, nameOf) => `of: ${nameText(value, nameOf)}`,
  user_agent: (value) => programName(String(value)),
  previous_role: (value) => `before: ${textOf(value)}`,
  previous: (value) => `before: ${textOf(value)}`,
  url: (value) => `URL: ${textOf(value)}`,
  email: (value) => `e-mail: ${textOf(value)}`,
  billing_email: (value) => `billing e-mail: ${textOf(value)}`,
  mail: mailText,
  mode: (value) => (value === 'account' ? "keys: all of the creator's account" : ''),
  ssh_keys: (value, nameOf) =>
    `keys: ${Array.isArray(value) && value.length > 0 ? value.map((id) => nameText(id, nameOf)).join(', ') : 'none'}`,
  type: (value) =>
    value === 'totp' ? 'authenticator app' : value === 'webauthn' ? 'passkey' : textOf(value),
  hostnames: (value) => (Array.isArray(value) && value.length > 0 ? `hostnames: ${value.length}` : ''),
  api_keys: (value) => `API keys: ${textOf(value)}`,
};

function factText(name: string, value: unknown, nameOf: NameOf): string {
  return short(WORDS[name]?.(value, nameOf) ?? `${name.replaceAll('_', ' ')}: ${textOf(value)}`);
}

/** `key_…` and its like. */
const ID = /^[a-z]+_[0-9a-hjkmnp-tv-z]{26}$/;

const nameText = (id: unknown, nameOf: NameOf) => nameOf(String(id)) ?? textOf(id);

function secondsText(value: unknown): string {
  return typeof value === 'number' ? durationText(value) : 'off';
}

function sizeText(value: unknown): string {
  if (typeof value !== 'number') return textOf(value);
  return value % 1_024 === 0 ? `${value / 1_024} GiB` : `${value} MiB`;
}

/** In the time zone of the reader. */
function timeText(value: unknown): string {
  const time = new Date(String(value));
  return Number.isNaN(time.getTime()) ? textOf(value) : time.toLocaleString('sv-SE').slice(0, -3);
}

/** Which kinds of mail are off. */
function mailText(value: unknown): string {
  const off = Object.entries(isRecord(value) ? value : {}).flatMap(([kind, on]) =>
    on === false ? [kind] : [],
  );
  return `not mailed: ${off.join(' ') || 'none'}`;
}

function textOf(value: unknown): string {
  if (value === null || value === '') return 'none';
  if (typeof value === 'boolean') return value ? 'yes' : 'no';
  if (Array.isArray(value)) return value.length === 0 ? 'none' : value.map(textOf).join(' ');
  if (isRecord(value))
    return (
      Object.entries(value)
        .map(([name, each]) => `${name.replaceAll('_', ' ')}=${textOf(each)}`)
        .join(' ') || 'none'
    );
  return String(value);
}

function isRecord(value: unknown): value is Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null && !Array.isArray(value);
}

const MAX_FACT = 100;

function short(text: string): string {
  return text.length > MAX_FACT ? `${text.slice(0, MAX_FACT - 1).toWellFormed()}…` : text;
}
