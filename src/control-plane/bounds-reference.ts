/**
 * Writes the text of `docs/bounds.md` (`npm run documents`). For each table of the database, this document says what
 * limits the rows that one caller can add. For each report of many items that an agent or ingress sends, this document
 * says what a guest can put into an item. The types require an entry for each table and each such report.
 */
import type { BATCHES } from '../protocol/batches.ts';
import { markdownTable } from '../shared/markdown-table.ts';
import type { Database } from './db/tables.ts';

const BOUNDS = {
  changes:
    '20,000 changes of a user or service account in an hour (`BERTH_RATE_LIMITS`), with all of its credentials together, at each control plane. Past it they get 429 `RATE_LIMITED`. What deletes or stops goes on, and is bounded by what was made or started; so does a new proof of the password, of which an address has 60 a minute (`test/control-plane/rate-limits.test.ts`: “past the changes of an hour…”)',
  logins: '300 logins of an account in an hour, and its quota of sessions',
  organisation: 'other quotas of the organisation',
  account: 'other quotas of the account',
  fixed: 'a fixed number for each instance, port, account or organisation',
  mails:
    'the counts of mails: five of one kind to an address in a quarter of an hour, 200 of an organisation',
  disk: 'the disk of an instance, and the retention of its generations',
  time: 'time: one boot of an instance at a time, seconds for each reset of a guest, a sample a minute, usage by the hour, a window for each caller',
  address:
    'the requests of an address in a minute; gone after minutes, locks after a week. Where sign-ups are open, users stay',
  operators: 'operators and their machines alone',
} as const;

interface TableBound {
  readonly bound: keyof typeof BOUNDS;
  /** How long a row stays, or how many there are. */
  readonly note?: string;
}

/** Of the migrations, which write their list themselves, the queries know nothing. */
const TABLES: Readonly<Record<keyof Database | 'schema_migrations', TableBound>> = {
  audit_log: { bound: 'changes', note: 'for good' },
  audit_heads: { bound: 'changes', note: 'for good' },
  http_labels: { bound: 'changes', note: 'for good' },
  idempotency_keys: { bound: 'changes', note: 'a day' },
  events: { bound: 'changes', note: '30 days' },
  notifications: { bound: 'changes', note: '90 days' },
  webhook_deliveries: { bound: 'changes', note: '14 days' },
  webhook_attempts: { bound: 'changes', note: '14 days' },
  flushes: { bound: 'changes', note: 'days' },
  console_tickets: { bound: 'changes', note: 'a minute' },
  http_tickets: { bound: 'changes', note: 'a minute' },
  sudo_grants: { bound: 'changes', note: 'five minutes' },
  sessions: { bound: 'logins' },
  session_tokens: { bound: 'logins' },
  replaced_refresh_tokens: { bound: 'logins', note: 'ten seconds' },
  known_locations: { bound: 'logins', note: '500' },
  identities: { bound: 'logins' },
  instances: { bound: 'organisation' },
  api_keys: { bound: 'organisation' },
  service_accounts: { bound: 'organisation' },
  webhooks: { bound: 'organisation' },
  webhook_leases: { bound: 'organisation' },
  open_streams: { bound: 'organisation' },
  organisations: { bound: 'account' },
  memberships: { bound: 'account' },
  ssh_keys: { bound: 'account' },
  mfa_factors: { bound: 'account' },
  recovery_codes: { bound: 'account' },
  http_ports: { bound: 'fixed', note: '20 an instance' },
  http_port_use: { bound: 'fixed' },
  http_hostnames: { bound: 'fixed', note: '10 a port' },
  http_cookies: { bound: 'fixed', note: '20' },
  secrets: { bound: 'fixed' },
  instance_authorities: { bound: 'fixed' },
  execs: { bound: 'fixed', note: '32 that run, 100 that ended' },
  denied_destinations: { bound: 'fixed', note: '100' },
  user_data: { bound: 'fixed' },
  instance_ssh_keys: { bound: 'fixed' },
  invitations: { bound: 'fixed', note: '1,000' },
  notification_preferences: { bound: 'fixed' },
  mails: { bound: 'mails' },
  mail_counts: { bound: 'mails' },
  mail_tokens: { bound: 'mails' },
  disks: { bound: 'disk' },
  generations: { bound: 'disk' },
  segments: { bound: 'disk' },
  segment_holders: { bound: 'disk' },
  data_keys: { bound: 'disk' },
  memory_images: { bound: 'disk' },
  vms: { bound: 'time' },
  metric_samples: { bound: 'time' },
  usage_hours: { bound: 'time' },
  usage_clock: { bound: 'time' },
  request_counts: { bound: 'time' },
  device_logins: { bound: 'address' },
  webauthn_challenges: { bound: 'address' },
  lockouts: { bound: 'address' },
  users: { bound: 'address' },
  hosts: { bound: 'operators' },
  host_slots: { bound: 'operators' },
  host_use: { bound: 'operators' },
  host_org_use: { bound: 'operators' },
  free_ssh_ports: { bound: 'operators' },
  ingresses: { bound: 'operators' },
  control_planes: { bound: 'operators' },
  installation: { bound: 'operators' },
  image_versions: { bound: 'operators' },
  object_stores: { bound: 'operators' },
  object_readers: { bound: 'operators' },
  object_writers: { bound: 'operators' },
  deleted_instances: { bound: 'operators' },
  event_head: { bound: 'operators' },
  schema_migrations: { bound: 'operators' },
};

/** What a guest can put into one item. */
const REPORTS: Readonly<Record<keyof typeof BATCHES, string>> = {
  heartbeat: 'dirty bytes, and how full its file system is',
  minutes: 'memory and network counters',
  denied: 'names and addresses that it tried to reach',
  execs:
    'offsets, exit codes and times of a supervisor that root in the guest has replaced. They are also checked where they enter the host, and make no exec that nobody asked for, except for 64 a boot (`test/host/hostile-execs.test.ts`)',
  logins: 'lines of its log of SSH logins',
  activity: 'nothing: ports in use',
  reportHttp: 'statuses, which count from 100 to 599, and the text of errors',
  routes: 'nothing: SSH addresses that could not be opened',
  offerImages: 'nothing: images of the host',
  objectPermissions: 'nothing: objects of disks',
};

const HEAD = `# Bounds

Generated by \`npm run documents\` from \`src/control-plane/bounds-reference.ts\`.

## Rows that one caller adds

For each table of the database: what bounds the rows that one person, service account, guest or stranger can add. The requests of a caller are limited to 1,200 a minute, those that take a password to 60 a minute for an address.`;

const REPORTS_HEAD = `## Reports of many

Agent and ingress send some requests with many items, of several instances. One sender sends them all (\`src/protocol/batches.ts\`): it checks each item by the schema of the receiver, drops and logs one that does not fit, and splits a request that is refused all the same until it has found the item (\`test/protocol/batches.test.ts\`). What was refused is never reported again unchanged; only a question, for an image or an object, is asked again. While the control plane is away, nothing is dropped.

Any other report is about one VM, or answers one call. So a refused one holds up no other VM.`;

export function boundsText(): string {
  const bounds = Object.entries(BOUNDS).map(([key, text]) => {
    const tables = Object.entries<TableBound>(TABLES)
      .filter(([, { bound }]) => bound === key)
      .map(([name, { note }]) => (note === undefined ? `\`${name}\`` : `\`${name}\` (${note})`));
    return [text, tables.join(', ')];
  });
  const reports = Object.entries(REPORTS).map(([name, text]) => [`\`${name}\``, text]);
  const tables = [
    markdownTable(['bound', 'tables'], bounds),
    markdownTable(['call', 'what a guest can put into an item'], reports),
  ];
  return `${[HEAD, tables[0], REPORTS_HEAD, tables[1]].join('\n\n')}\n`;
}
