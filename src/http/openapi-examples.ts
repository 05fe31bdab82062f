/**
 * Examples of every request body and every answer, made from the schemas: a field's value by its name (`VALUES`,
 * first under its schema's name), else by its type. A test holds each against its schema.
 */
import { assert } from '../lib/assert.ts';
import { JSON_TYPE, type MediaObject, type OpenApiDocument, type SchemaObject } from './openapi-types.ts';

const TIME = '2026-01-15T09:30:00.000Z';
const ULID = '01k5x8m2vq7r4t9wz3b6c8d0ef';
const KEY = 'AAAAC3NzaC1lZDI1NTE5AAAAIJqQm5Z1kT0fN2tq0Q7m8bq3yqkqk4dJX9mC2l7hY1aB';

const ID_PREFIXES: Readonly<Record<string, string>> = {
  User: 'usr',
  Org: 'org',
  Session: 'sess',
  ApiKey: 'ak',
  CreateApiKeyResponse: 'ak',
  ServiceAccount: 'sa',
  Instance: 'inst',
  Vm: 'vm',
  SshKey: 'key',
  KeySetKey: 'key',
  AuditEntry: 'aud',
  MfaFactor: 'mfa',
  AddMfaFactorResponse: 'mfa',
  Member: 'usr',
  Invitation: 'inv',
  ListedInvitation: 'inv',
  Webhook: 'wh',
  CreateWebhookResponse: 'wh',
  WebhookDelivery: 'whd',
  Notification: 'ntf',
  NotificationResource: 'inst',
  Event: 'evt',
};

/** By `Schema.field`, else by `field`. */
const VALUES: Readonly<Record<string, unknown>> = {
  name: 'web-1',
  'User.name': 'Ada Lovelace',
  'Member.name': 'Ada Lovelace',
  'RegisterRequest.name': 'Ada Lovelace',
  'ChangeMeRequest.name': 'Ada Lovelace',
  'Org.name': 'Analytical Engines',
  'CreateOrgRequest.name': 'Analytical Engines',
  'ChangeOrgRequest.name': 'Analytical Engines',
  'ApiKey.name': 'deploy',
  'CreateApiKeyRequest.name': 'deploy',
  'CreateApiKeyResponse.name': 'deploy',
  'ServiceAccount.name': 'ci',
  'CreateServiceAccountRequest.name': 'ci',
  email: 'ada@example.org',
  billing_email: 'bills@example.org',
  password: 'a long passphrase of yours',
  current_password: 'a long passphrase of yours',
  new_password: 'another long passphrase',
  token: 'berth_mail_4kV0tq8WbYh2RmXz5nJc7LsPd1Fg3Ua9Eo6Ti',
  invitation_token: 'berth_mail_4kV0tq8WbYh2RmXz5nJc7LsPd1Fg3Ua9Eo6Ti',
  session_token: 'berth_sess_…',
  key: 'berth_live_…',
  prefix: 'berth_live_4kV0',
  last4: 'x7Qd',
  scope: 'instances:read vm:write',
  role: 'member',
  totp_code: '492039',
  code: '492039',
  recovery_code: 'k3v9-7q2m-x8rw-p5tz',
  recovery_codes: ['k3v9-7q2m-x8rw-p5tz', 'b6dn-4h8s-y2cj-w9fa'],
  secret: 'JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP',
  otpauth_url: 'otpauth://totp/Berth:ada%40example.org?secret=JBSWY3DPEHPK3PXPJBSWY3DPEHPK3PXP&issuer=Berth',
  'Instance.image': 'debian-12',
  image: 'debian-12',
  versions: ['5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef'],
  'Image.current': '5f70bf18a086007016e948b04aed3b82103a36bea41755b6cddfaf10ace3c6ef',
  'Image.size_bytes': 1_073_741_824,
  'Image.id': 'debian-12',
  'Generation.name': 'before the upgrade',
  'ChangeGenerationRequest.name': 'before the upgrade',
  generations_keep: { last: 24, daily_days: 14 },
  bytes: 4_194_304,
  cpus: 2,
  memory_mib: 1024,
  disk_gib: 8,
  labels: { env: 'production' },
  auto_flush_seconds: 60,
  idle_timeout_seconds: null,
  wake_on_connect: false,
  deleting: false,
  state: 'running',
  boot: 3,
  host_id: `host_${ULID}`,
  org_id: `org_${ULID}`,
  instance_id: `inst_${ULID}`,
  service_account_id: null,
  'CreateApiKeyRequest.service_account_id': `sa_${ULID}`,
  owner_id: `usr_${ULID}`,
  created_by: `usr_${ULID}`,
  invited_by: `usr_${ULID}`,
  actor: `usr_${ULID}`,
  target: `ak_${ULID}`,
  action: 'api_key.create',
  request_id: 'req_5f2b8c1e9d3a4b7c6e0f1a2d',
  ip: '203.0.113.7',
  user_agent: 'Mozilla/5.0',
  current: true,
  mfa_enabled: true,
  allowed_cidrs: ['203.0.113.0/24'],
  expires_in_seconds: 7_776_000,
  grace_seconds: 3600,
  previous_expires_at: null,
  stopped_at: null,
  reason: null,
  host: 'berth.example.org',
  port: 22001,
  user: 'root',
  type: 'ssh-ed25519',
  'Event.type': 'vm.started',
  'NotificationResource.type': 'instance',
  'Notification.kind': 'vm.failed',
  title: 'The VM of web-1 has failed',
  body: 'The VM process ended by itself; what it had written is kept on its host.',
  count: 1,
  before: '2026-01-15T09:30:00.000Z',
  read_at: null,
  sequence: 12,
  'MfaFactor.type': 'totp',
  'AddMfaFactorRequest.type': 'totp',
  fingerprint: 'SHA256:Yk9mQ2x0b1B6c0h3d0RqR1ZtN2pXcTVlTjRyVDhhSzE',
  public_key: `ssh-ed25519 ${KEY}`,
  known_hosts: [`[berth.example.org]:22001 ssh-ed25519 ${KEY}`],
  command: 'ssh -p 22001 root@berth.example.org',
  'ExecRequest.command': ['uname', '-r'],
  stdin: '',
  at: TIME,
  cpu_seconds: 41.7,
  cpu_share: 0.12,
  host_bytes: 402_653_184,
  total_bytes: 503_316_480,
  interval_seconds: 15,
  ticket: 'berth_cons_4kV0tq8WbYh2RmXz5nJc7LsPd1Fg3Ua9Eo6Ti',
  user_data: '#!/bin/sh\napt-get update\n',
  'ExecRequest.timeout_seconds': 60,
  exit_code: 0,
  stdout: '6.1.0-31-cloud-amd64\n',
  stderr: '',
  truncated: false,
  allowed_keys: 1,
  ssh_key_ids: [`key_${ULID}`],
  size_bytes: 8_589_934_592,
  stored_bytes: 734_003_200,
  generation: 42,
  dirty_bytes: 0,
  uploaded_bytes: 4_194_304,
  segments: 1,
  duration_ms: 180,
  seq: 17,
  limit: 20,
  used: 3,
  next_cursor: null,
  url: 'https://hooks.example.org/berth',
  events: ['vm.started', 'vm.stopped'],
  disabled_reason: null,
  disabled_at: null,
  failing_since: null,
  previous_secret_expires_at: null,
  'CreateWebhookResponse.secret': 'whsec_…',
  event_id: `evt_${ULID}`,
  event_type: 'vm.started',
  attempt_count: 1,
  number: 1,
  'WebhookAttempt.status': 503,
  latency_ms: 38,
  'WebhookAttempt.error': 'not a 2xx status',
  'WebhookAttempt.response': 'busy',
  since: TIME,
};

export function addExamples(document: OpenApiDocument): void {
  const schemas = (document.components?.['schemas'] ?? {}) as Record<string, SchemaObject>;
  const add = (media: MediaObject | undefined) => {
    if (media && media.examples === undefined) media.example = exampleOf(media.schema, '', '', schemas);
  };
  for (const operations of Object.values(document.paths)) {
    for (const operation of Object.values(operations)) {
      add(operation.requestBody?.content[JSON_TYPE]);
      for (const response of Object.values(operation.responses)) {
        if ('content' in response) add(response.content?.[JSON_TYPE]);
      }
    }
  }
}

type Schemas = Readonly<Record<string, SchemaObject>>;

function exampleOf(schema: SchemaObject, owner: string, field: string, schemas: Schemas): unknown {
  if (schema.$ref !== undefined) {
    const name = schema.$ref.split('/').at(-1) ?? '';
    return exampleOf(schemas[name] ?? {}, name, field, schemas);
  }
  if (schema.const !== undefined) return schema.const;
  if (schema.properties) return objectExample(schema, owner, schemas);
  const known = VALUES[`${owner}.${field}`] ?? VALUES[field];
  if (known !== undefined || `${owner}.${field}` in VALUES || field in VALUES) return fitting(known, schema);
  if (schema.anyOf) return exampleOf(schema.anyOf[0] ?? {}, owner, field, schemas);
  return byType(schema, owner, field, schemas);
}

/** A value by name is for the field that the name is usually of; an enum has its own. */
function fitting(value: unknown, schema: SchemaObject): unknown {
  return schema.enum && !schema.enum.includes(value) ? schema.enum[0] : value;
}

function objectExample(schema: SchemaObject, owner: string, schemas: Schemas): unknown {
  const fields = Object.entries(schema.properties ?? {});
  // Alternatives beside each other cannot all be given; what is required tells a request's shape well enough.
  const shown = fields.filter(([name]) => schema.required?.includes(name) || !RARE.has(`${owner}.${name}`));
  return Object.fromEntries(shown.map(([name, inner]) => [name, exampleOf(inner, owner, name, schemas)]));
}
const RARE = new Set([
  'LoginRequest.recovery_code',
  'LoginRequest.webauthn',
  'RegisterRequest.invitation_token',
  'CreateApiKeyRequest.service_account_id',
]);

function byType(schema: SchemaObject, owner: string, field: string, schemas: Schemas): unknown {
  if (schema.enum) return schema.enum[0];
  if (schema.format === 'date-time') return TIME;
  switch (schema.type) {
    case 'string': {
      if (field === 'id') return `${ID_PREFIXES[owner] ?? 'key'}_${ULID}`;
      // WebAuthn's fields, which a browser fills.
      return 'eyJ0eXBlIjoi';
    }
    case 'integer':
      return schema.minimum ?? 1;
    case 'boolean':
      return true;
    case 'array':
      return schema.items ? [exampleOf(schema.items, owner, field, schemas)] : [];
    case 'object':
    case undefined:
      return {};
    case 'null':
      return null;
    default:
      assert(false, `no example for ${owner}.${field} of type ${String(schema.type)}`);
  }
}
