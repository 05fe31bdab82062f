/**
 * The public API in this process, on a free loopback port with its own database. Users, sessions, sudo grants and keys are
 * inserted into the database directly. Mail is recorded, not sent.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after } from 'node:test';
import { Agent } from 'undici';
import type { AuditLog } from '../../src/audit/append.ts';
import { API_KEY_PREFIX, hashToken, newToken, SESSION_PREFIX, SUDO_PREFIX } from '../../src/auth/tokens.ts';
import { NotifyHub } from '../../src/db/notify.ts';
import { type Db, openPool } from '../../src/db/pool.ts';
import type { Role } from '../../src/db/tables.ts';
import { diskKeys } from '../../src/disks/data-keys.ts';
import { HostCalls } from '../../src/hosts/host-calls.ts';
import { createApp } from '../../src/http/app.ts';
import { type AppContext, keyedParts } from '../../src/http/context.ts';
import {
  type ApiKeyId,
  newId,
  type OrgId,
  type ServiceAccountId,
  type SessionId,
  type UserId,
} from '../../src/lib/ids.ts';
import { createLog } from '../../src/lib/log.ts';
import { Sealer } from '../../src/lib/seal.ts';
import { LISTEN_AT_NAMES } from '../../src/lib/ssh-listen.ts';
import type { Mail } from '../../src/mail/mailer.ts';
import { Outbound } from '../../src/webhooks/outbound/outbound.ts';
import { LOOPBACK } from './api.ts';
import { Client } from './client.ts';
import { startDatabase } from './database.ts';
import { NO_INSTALLATION } from './no-installation.ts';
import { RecordingMailbox } from './recording-mailbox.ts';
import { UNLIMITED_ORGANISATIONS } from './unlimited-quotas.ts';

export interface Member {
  readonly user_id: UserId;
  readonly org_id: OrgId;
  readonly email: string;
  readonly session_id: SessionId;
  /** The plain session token. */
  readonly session: string;
}

export interface MemberOptions {
  /** Absent: a new organisation. */
  readonly org_id?: OrgId;
  readonly role?: Role;
  readonly email?: string;
}

export interface AccessApi {
  readonly db: Db;
  /** The context of the API's handlers. */
  readonly pool: Db;
  readonly audit: AuditLog;
  readonly hub: NotifyHub;
  /** Without a credential. */
  readonly client: Client;
  /** All mails so far, oldest first. */
  readonly mails: readonly Mail[];
  as(who: Member | string): Client;
  member(options?: MemberOptions): Promise<Member>;
  /** Headers that carry a live sudo grant of this session. */
  sudo(who: Member): Promise<{ cookie: string }>;
  key(holder: KeyHolder, scope: string): Promise<{ id: ApiKeyId; key: string }>;
  serviceAccount(org_id: OrgId, scope: string): Promise<ServiceAccountId>;
}

export type KeyHolder =
  | { readonly org_id: OrgId; readonly user_id: UserId }
  | { readonly org_id: OrgId; readonly service_account_id: ServiceAccountId };

/** Starts the API for a test file; awaited at the top of the file. It ends after the file's tests, also when they fail. */
export async function accessApiForFile(
  options: Partial<Pick<AppContext, 'rate_limits' | 'trusted_proxies' | 'has_smtp'>> = {},
): Promise<AccessApi> {
  const database = await startDatabase();
  const log = createLog('test', 'silent');
  const pool = openPool(database.url, () => undefined);
  const root_key = randomBytes(32);
  const mailbox = new RecordingMailbox();
  const hub = new NotifyHub(database.url, log);
  const outbound = new Outbound({ allow_cidrs: LOOPBACK });
  const context: AppContext = {
    db: pool,
    hub,
    host_calls: new HostCalls(),
    log,
    ...keyedParts(root_key),
    disk_keys: diskKeys(root_key, true),
    webhooks: {
      outbound,
      secrets: new Sealer(root_key, 'berth webhooks v1'),
    },
    mailbox,
    signups: 'closed',
    oidc: null,
    password_login: true,
    quotas: UNLIMITED_ORGANISATIONS,
    rate_limits: null,
    ssh: { hosts: ['127.0.0.1'], first_port: 22_000, last_port: 22_999, listen: LISTEN_AT_NAMES },
    http: { domain: 'apps.example.org', scheme: 'http', port: null },
    public_url: 'http://127.0.0.1',
    trusted_proxies: [],
    has_smtp: false,
    installation: NO_INSTALLATION,
    tls: null,
    ...options,
  };
  const app = await createApp(context);
  hub.start();
  const origin = await app.listen({ host: '127.0.0.1', port: 0 });
  const connections = new Agent({ connections: 64 });
  after(async () => {
    await connections.destroy();
    await hub.stop();
    await app.close();
    await outbound.close();
    await pool.destroy();
    await database.close();
  });
  const { db } = database;
  const client = new Client(origin, connections);
  return {
    db,
    pool,
    audit: context.audit,
    hub,
    client,
    mails: mailbox.committed,
    as: (who) => client.as(typeof who === 'string' ? who : who.session),
    member: (options) => makeMember(db, options),
    sudo: (who) => grantSudo(db, who),
    key: (holder, scope) => makeKey(db, holder, scope),
    serviceAccount: (org_id, scope) => makeServiceAccount(db, org_id, scope),
  };
}

async function makeMember(db: Db, options: MemberOptions = {}): Promise<Member> {
  const user_id = newId('usr');
  const email = options.email ?? `${user_id}@example.org`;
  await db
    .insertInto('users')
    .values({
      id: user_id,
      email,
      email_key: email.toLowerCase(),
      name: 'Test Person',
      password_hash: '-',
      email_confirmed: true,
    })
    .execute();
  const org_id = options.org_id ?? newId('org');
  if (options.org_id === undefined) {
    await db.insertInto('organisations').values({ id: org_id, name: 'Org', billing_email: email }).execute();
  }
  await db
    .insertInto('memberships')
    .values({ org_id, user_id, role: options.role ?? 'owner' })
    .execute();
  const session = newToken(SESSION_PREFIX);
  const session_id = newId('sess');
  const in_an_hour = new Date(Date.now() + 3_600_000);
  await db
    .insertInto('sessions')
    .values({ id: session_id, user_id, ip: '127.0.0.1', user_agent: 'test', ends_at: in_an_hour })
    .execute();
  await db
    .insertInto('session_tokens')
    .values({ token_hash: hashToken(session), session_id, expires_at: in_an_hour })
    .execute();
  return { user_id, org_id, email, session_id, session };
}

async function grantSudo(db: Db, { session_id, user_id }: Member): Promise<{ cookie: string }> {
  const token = newToken(SUDO_PREFIX);
  await db
    .insertInto('sudo_grants')
    .values({
      token_hash: hashToken(token),
      session_id,
      user_id,
      expires_at: new Date(Date.now() + 300_000),
    })
    .execute();
  return { cookie: `__Secure-berth_sudo=${token}` };
}

async function makeKey(db: Db, holder: KeyHolder, scope: string): Promise<{ id: ApiKeyId; key: string }> {
  const key = newToken(API_KEY_PREFIX);
  const id = newId('ak');
  await db
    .insertInto('api_keys')
    .values({
      id,
      name: 'test',
      scope,
      token_hash: hashToken(key),
      prefix: key.slice(0, 15),
      last4: key.slice(-4),
      ...holder,
    })
    .execute();
  return { id, key };
}

async function makeServiceAccount(db: Db, org_id: OrgId, scope: string): Promise<ServiceAccountId> {
  const id = newId('sa');
  await db
    .insertInto('service_accounts')
    .values({ id, org_id, name: 'robot', scope, created_by: 'test' })
    .execute();
  return id;
}

/** Inserts an instance without a VM, for tests that only count instances. */
export async function makeInstance(
  db: Db,
  org_id: OrgId,
  options: { created_by?: string; ssh_key_mode?: 'account' | 'explicit' } = {},
) {
  const id = newId('inst');
  ports += 1;
  await db
    .insertInto('instances')
    .values({
      id,
      org_id,
      created_by: options.created_by ?? 'test',
      ssh_key_mode: options.ssh_key_mode ?? 'account',
      name: `machine-${ports}`,
      image: 'debian-12',
      cpus: 2,
      memory_mib: 1024,
      disk_gib: 10,
      labels: '{}',
      wake_on_connect: false,
      ssh_port: ports,
    })
    .execute();
  return id;
}
let ports = 1_000;

/** The token of an invitation's mail. */
export function tokenOf(mail: Mail | undefined): string {
  const token = /^berth_mail_\w+$/m.exec(mail?.text ?? '')?.[0];
  assert.ok(token, `no token in ${mail?.text}`);
  return token;
}

/** Types of an organisation's events, oldest first. */
export async function eventsOf(
  db: Db,
  org_id: OrgId,
): Promise<{ type: string; data: unknown; actor: string }[]> {
  return db
    .selectFrom('events')
    .select(['type', 'data', 'actor'])
    .where('org_id', '=', org_id)
    .orderBy('created_at')
    .orderBy('id')
    .execute();
}

export async function auditOf(db: Db, org_id: OrgId) {
  return db
    .selectFrom('audit_log')
    .select(['action', 'actor', 'target', 'data'])
    .where('org_id', '=', org_id)
    .orderBy('serial')
    .execute();
}
