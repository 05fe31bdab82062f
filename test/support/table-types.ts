/**
 * Writes the Kysely types of all tables from a migrated database (ADR 6). The type of a column follows from an override
 * below (the shape of JSON, and what only code knows), from its name (an id), from a check of its values (a union), or
 * from its type in PostgreSQL: the first of these that exists. The column's comment in the database becomes that of the
 * type.
 */
import { connect } from '../../src/control-plane/db/connect.ts';

const HEAD = `/**
 * The types of the tables. Made by \`node test/support/write-schema.ts\` from a migrated database; do not edit.
 * Shapes of JSON: column-types.ts. What only code knows of a column: test/support/table-types.ts.
 */
`;

const PLAIN: Record<string, string> = {
  text: 'string',
  uuid: 'string',
  boolean: 'boolean',
  smallint: 'number',
  integer: 'number',
  bigint: 'number',
  real: 'number',
  'double precision': 'number',
  bytea: 'Buffer',
  'timestamp with time zone': 'Date',
};

/** The ids that columns of a name hold in every table. */
const NAMED: Record<string, string> = {
  org_id: 'OrgId',
  user_id: 'UserId',
  service_account_id: 'ServiceAccountId',
  session_id: 'SessionId',
  instance_id: 'InstanceId',
  vm_id: 'VmId',
  host_id: 'HostId',
  exec_id: 'ExecId',
  ssh_key_id: 'SshKeyId',
  port_id: 'HttpPortId',
  event_id: 'EventId',
  webhook_id: 'WebhookId',
  delivery_id: 'WebhookDeliveryId',
  created_by_key: 'ApiKeyId',
  parent_key: 'ApiKeyId',
};

/** The types of single columns, without `| null` and defaults. Of jsonb: the shape. */
const OVERRIDES: Record<string, string> = {
  'api_keys.id': 'ApiKeyId',
  'audit_log.data': 'Record<string, unknown>',
  'audit_log.id': 'AuditId',
  'console_tickets.credential_id': 'SessionId | ApiKeyId',
  'device_logins.confirmed_by': 'SessionId',
  'events.data': 'unknown',
  'events.id': 'EventId',
  'execs.command': 'readonly string[]',
  'execs.id': 'ExecId',
  'flushes.error': 'unknown',
  'flushes.id': 'FlushId',
  'flushes.receipt': 'unknown',
  'flushes.trace_context': 'TraceContext',
  'generations.map': 'MapRef',
  'generations.origin': 'GenerationOrigin',
  'generations.segments': 'SegmentRef[]',
  'hosts.facts': 'HostFacts',
  'hosts.id': 'HostId',
  'hosts.labels': 'Record<string, string>',
  'http_port_use.last_error': 'HttpError',
  'http_ports.id': 'HttpPortId',
  'ingresses.id': 'IngressId',
  'instances.forked_from': 'ForkedFrom',
  'instances.host_keys': 'HostKey[]',
  'instances.host_labels': 'Record<string, string>',
  'instances.id': 'InstanceId',
  'instances.labels': 'Record<string, string>',
  'invitations.id': 'InvitationId',
  'mails.id': 'MailId',
  'memory_images.ref': 'MemoryRef',
  'metric_samples.maxs': 'readonly (number | null)[]',
  'metric_samples.means': 'readonly (number | null)[]',
  'metric_samples.mins': 'readonly (number | null)[]',
  'mfa_factors.credential': 'StoredCredential',
  'mfa_factors.id': 'MfaFactorId',
  'notifications.data': 'Record<string, unknown>',
  'notifications.id': 'NotificationId',
  'notifications.recipient': 'UserId | ServiceAccountId',
  'organisations.created_by': 'UserId',
  'organisations.id': 'OrgId',
  'organisations.quotas': 'OwnQuotas',
  'service_accounts.id': 'ServiceAccountId',
  'sessions.id': 'SessionId',
  'ssh_keys.id': 'SshKeyId',
  'users.id': 'UserId',
  'vms.applied_keys': 'readonly string[]',
  'vms.id': 'VmId',
  'vms.reason_code': 'VmReasonCode',
  'vms.trace_context': 'TraceContext',
  'webhook_attempts.response_headers': 'Record<string, string>',
  'webhook_deliveries.id': 'WebhookDeliveryId',
  'webhooks.id': 'WebhookId',
};

/** Whole types. It is written as text, because it may be `infinity`, and read only in SQL. */
const WHOLE: Record<string, string> = {
  'vms.restart_after': 'ColumnType<never, string | undefined, string>',
};

/** Where the types come from; all others are ids. */
const MODULES: Record<string, readonly string[]> = {
  '../../protocol/host-types.ts': ['HostFacts'],
  '../../protocol/types.ts': ['HostKey', 'MapRef', 'MemoryRef', 'SegmentRef', 'VmReasonCode'],
  '../../shared/quotas.ts': ['OwnQuotas'],
  '../../shared/tracing.ts': ['TraceContext'],
  './column-types.ts': ['ForkedFrom', 'GenerationOrigin', 'HttpError', 'StoredCredential'],
  kysely: ['ColumnType', 'Generated', 'GeneratedAlways'],
};

interface Column {
  readonly table_name: string;
  readonly table_comment: string | null;
  readonly name: string;
  readonly type: string;
  readonly nullable: boolean;
  readonly has_default: boolean;
  readonly identity: boolean;
  readonly comment: string | null;
  /** The definition of the check that lists its values. */
  readonly values: string | null;
}

const COLUMNS = `
  select c.relname as table_name, obj_description(c.oid, 'pg_class') as table_comment, a.attname as name,
    format_type(a.atttypid, null) as type, not a.attnotnull as nullable, a.atthasdef as has_default,
    a.attidentity = 'a' as identity, col_description(c.oid, a.attnum) as comment,
    (select pg_get_constraintdef(k.oid) from pg_constraint k
      where k.conrelid = c.oid and k.contype = 'c' and k.conkey = array[a.attnum]
        and pg_get_constraintdef(k.oid) ~ ('^CHECK \\(\\(' || a.attname || ' = ANY \\(ARRAY\\[''')) as values
  from pg_attribute a join pg_class c on c.oid = a.attrelid
  where c.relnamespace = 'public'::regnamespace and c.relkind in ('r', 'p') and a.attnum > 0 and not a.attisdropped
    and c.relname <> 'schema_migrations'
  order by c.relname collate "C", a.attnum`;

/** @throws Error when a column's type is unknown, or an override names no column */
export async function tableTypes(url: string): Promise<string> {
  const client = await connect(url);
  try {
    const columns = (await client.query<Column>(COLUMNS)).rows;
    refuseUnused(columns);
    const tables = Map.groupBy(columns, ({ table_name }) => table_name);
    const body = [...tables].map(
      ([name, of]) =>
        `${comment(of[0]?.table_comment ?? null, 2)}  ${name}: {\n${of.map(columnText).join('')}  };\n`,
    );
    const text = `export interface Database {\n${body.join('')}}\n`;
    return `${HEAD}${imports(text)}\n${text}`;
  } finally {
    await client.end();
  }
}

function refuseUnused(columns: readonly Column[]): void {
  const known = new Set(columns.map(({ table_name, name }) => `${table_name}.${name}`));
  const unused = Object.keys({ ...OVERRIDES, ...WHOLE }).filter((name) => !known.has(name));
  if (unused.length > 0) throw new Error(`table-types.ts: no column ${unused.join(', ')}`);
}

function columnText(column: Column): string {
  return `${comment(column.comment, 4)}    ${column.name}: ${typeOf(column)};\n`;
}

function typeOf(column: Column): string {
  const { table_name, name, type, nullable, has_default, identity } = column;
  const whole = WHOLE[`${table_name}.${name}`];
  if (whole !== undefined) return whole;
  const value = valueType(column);
  if (identity) return `GeneratedAlways<${value}>`;
  const or_null = nullable && value !== 'unknown' ? `${value} | null` : value;
  if (type === 'jsonb') {
    const written = nullable ? 'string | null' : 'string';
    return `ColumnType<${or_null}, ${written}${has_default ? ' | undefined' : ''}, ${written}>`;
  }
  return has_default ? `Generated<${or_null}>` : or_null;
}

function valueType({ table_name, name, type, values }: Column): string {
  const own = OVERRIDES[`${table_name}.${name}`] ?? NAMED[name];
  if (own !== undefined) return own;
  if (values !== null) {
    const found = [...values.matchAll(/'([^']*)'::text/g)].map(([, value]) => `'${value}'`);
    return found.join(' | ');
  }
  const array = type.endsWith('[]');
  const plain = PLAIN[array ? type.slice(0, -2) : type];
  if (plain === undefined) throw new Error(`table-types.ts: ${table_name}.${name} has the type ${type}`);
  return array ? `${plain}[]` : plain;
}

function comment(text: string | null, indent: number): string {
  return text === null ? '' : `${' '.repeat(indent)}/** ${text} */\n`;
}

function imports(text: string): string {
  const used = new Set(text.replaceAll(/\/\*\*.*?\*\//g, '').match(/\b[A-Z]\w+/g));
  const elsewhere = new Set([...Object.values(MODULES).flat(), 'Database', 'Date', 'Buffer', 'Record']);
  const ids = [...used].filter((name) => !elsewhere.has(name));
  return Object.entries({ ...MODULES, '../../shared/ids.ts': ids })
    .map(([module, names]) => [module, names.filter((name) => used.has(name)).sort()] as const)
    .filter(([, names]) => names.length > 0)
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([module, names]) => `import type { ${names.join(', ')} } from '${module}';\n`)
    .join('');
}
