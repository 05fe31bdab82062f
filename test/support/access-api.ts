/**
 * Runs the public API in this process, on a free loopback port with its own database. Users, sessions, sudo grants and
 * keys are inserted into the database directly. Mails are recorded, not sent.
 */
import assert from 'node:assert/strict';
import { randomBytes } from 'node:crypto';
import { after } from 'node:test';
import { Agent } from 'undici';
import { createApp } from '../../src/control-plane/app.ts';
import type { AuditLog } from '../../src/control-plane/audit/append.ts';
import { type AppContext, keyedParts } from '../../src/control-plane/context.ts';
import { NotifyHub } from '../../src/control-plane/db/notify.ts';
import { type Db, openPool } from '../../src/control-plane/db/pool.ts';
import { diskKeys } from '../../src/control-plane/disks/data-keys.ts';
import { HostCalls } from '../../src/control-plane/fleet/host-calls.ts';
import type { Mail } from '../../src/control-plane/mail/send-mails.ts';
import { Outbound } from '../../src/control-plane/webhooks/outbound.ts';
import { type ApiKeyId, newId, type OrgId, type ServiceAccountId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { Sealer } from '../../src/shared/seal.ts';
import { LISTEN_AT_NAMES } from '../../src/shared/setting-values.ts';
import { LOOPBACK } from './api.ts';
import { Client } from './client.ts';
import { startDatabase } from './database.ts';
import { NO_INSTALLATION } from './no-installation.ts';
import {
  type KeyHolder,
  makeKey,
  makePerson,
  makeServiceAccount,
  makeSudo,
  type Person,
  type PersonOptions,
} from './people.ts';
import { RecordingMailbox } from './recording-mailbox.ts';
import { UNLIMITED_ORGANISATIONS } from './unlimited-quotas.ts';

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
  as(who: Person | string): Client;
  member(options?: PersonOptions): Promise<Person>;
  /** Headers that carry a live sudo grant of this session. */
  sudo(who: Person): Promise<{ cookie: string }>;
  key(holder: KeyHolder, scope: string): Promise<{ id: ApiKeyId; key: string }>;
  serviceAccount(org_id: OrgId, scope: string): Promise<ServiceAccountId>;
}

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
    member: (options) => makePerson(db, options),
    sudo: (who) => makeSudo(db, who),
    key: (holder, scope) => makeKey(db, holder, scope),
    serviceAccount: (org_id, scope) => makeServiceAccount(db, org_id, scope),
  };
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
