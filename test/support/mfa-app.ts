/** Runs the public API with a clock that tests set, with users who have passwords, and with its own database. */

import { randomBytes } from 'node:crypto';
import { after } from 'node:test';
import type { FastifyInstance } from 'fastify';
import { pino } from 'pino';
import { createApp } from '../../src/control-plane/app.ts';
import { type AppContext, keyedParts } from '../../src/control-plane/context.ts';
import { NotifyHub } from '../../src/control-plane/db/notify.ts';
import type { Db } from '../../src/control-plane/db/pool.ts';
import { diskKeys } from '../../src/control-plane/disks/data-keys.ts';
import { HostCalls } from '../../src/control-plane/fleet/host-calls.ts';
import { SUDO_COOKIE } from '../../src/control-plane/http/cookies.ts';
import { hashPassword } from '../../src/control-plane/identity/passwords.ts';
import type { Principal } from '../../src/control-plane/identity/principal.ts';
import { grantSudo, openSession } from '../../src/control-plane/identity/sessions.ts';
import type { Mail } from '../../src/control-plane/mail/send-mails.ts';
import { Outbound } from '../../src/control-plane/webhooks/outbound.ts';
import { newId, type OrgId, type SessionId, type UserId } from '../../src/shared/ids.ts';
import { Sealer } from '../../src/shared/seal.ts';
import { LISTEN_AT_NAMES } from '../../src/shared/setting-values.ts';
import { startDatabase } from './database.ts';
import { NO_INSTALLATION } from './no-installation.ts';
import { RecordingMailbox } from './recording-mailbox.ts';
import { UNLIMITED_ORGANISATIONS } from './unlimited-quotas.ts';

export const ORIGIN = 'http://localhost:7400';
export const PASSWORD = 'correct horse battery staple';
const PASSWORD_HASH = hashPassword(PASSWORD);

export interface Person {
  readonly user_id: UserId;
  readonly org_id: OrgId;
  readonly session_id: SessionId;
  readonly email: string;
  readonly token: string;
}

export interface Reply {
  readonly status: number;
  // biome-ignore lint/suspicious/noExplicitAny: each response has its own shape
  readonly body: any;
  readonly headers: Record<string, unknown>;
}

export interface MfaApp {
  readonly db: Db;
  readonly context: AppContext & { readonly now: () => number };
  /** The time for TOTP codes, in seconds since the epoch. */
  readonly clock: { now_s: number };
  readonly mails: Mail[];
  /** For each log line its reason, or its message if it has none. */
  readonly logged: string[];
  person(): Promise<Person>;
  /** The value of a Cookie header. */
  sudo(person: Person): Promise<string>;
  call(method: 'GET' | 'POST' | 'PUT' | 'DELETE', url: string, options?: CallOptions): Promise<Reply>;
  /** The same with a live sudo grant. */
  callSudo(method: 'POST', url: string, options: { as: Person; body: unknown }): Promise<Reply>;
}

export interface CallOptions {
  readonly as?: Person | string;
  readonly body?: unknown;
  readonly headers?: Record<string, string>;
}

/** Starts the API for a test file; awaited at the top of the file. */
export async function mfaAppForFile(): Promise<MfaApp> {
  const database = await startDatabase();
  const { db } = database;
  const clock = { now_s: Math.floor(Date.now() / 1000) };
  const mailbox = new RecordingMailbox();
  const logged: string[] = [];
  const log = pino({ level: 'info' }, { write: (line) => noteLine(logged, line) });
  const root_key = randomBytes(32);
  const outbound = new Outbound({ allow_cidrs: [] });
  const context: MfaApp['context'] = {
    db,
    hub: new NotifyHub(database.url, log),
    host_calls: new HostCalls(),
    log,
    ...keyedParts(root_key),
    disk_keys: diskKeys(root_key, true),
    webhooks: { outbound, secrets: new Sealer(root_key, 'test webhooks') },
    mailbox,
    signups: 'closed',
    oidc: null,
    password_login: true,
    quotas: UNLIMITED_ORGANISATIONS,
    rate_limits: null,
    ssh: { hosts: ['127.0.0.1'], first_port: 22_000, last_port: 22_999, listen: LISTEN_AT_NAMES },
    http: { domain: 'apps.example.org', scheme: 'http', port: null },
    public_url: 'http://127.0.0.1:7400',
    trusted_proxies: [],
    has_smtp: false,
    installation: NO_INSTALLATION,
    tls: null,
    now: () => clock.now_s * 1000,
  };
  const app = await createApp(context);
  after(async () => {
    await app.close();
    await outbound.close();
    await database.close();
  });
  const sudo = async ({ session_id, user_id, org_id }: Person) => {
    const credential = { kind: 'session', id: session_id, user_id, email_confirmed: true } as const;
    const principal: Principal = { credential, org_id, role: 'owner', scopes: new Set() };
    const { token } = await grantSudo(db, principal, await PASSWORD_HASH);
    return `${SUDO_COOKIE}=${token}`;
  };
  return {
    db,
    context,
    clock,
    mails: mailbox.committed,
    logged,
    person: () => makePerson(db),
    sudo,
    call: (method, url, options = {}) => call(app, method, url, options),
    callSudo: async (method, url, options) =>
      call(app, method, url, { ...options, headers: { cookie: await sudo(options.as) } }),
  };
}

function noteLine(logged: string[], line: string): void {
  const { msg, reason } = JSON.parse(line) as { msg: string; reason?: string };
  if (msg !== 'request') logged.push(reason ?? msg);
}

async function makePerson(db: Db): Promise<Person> {
  const user_id = newId('usr');
  const org_id = newId('org');
  const email = `${user_id}@example.org`;
  const password_hash = await PASSWORD_HASH;
  await db
    .insertInto('users')
    .values({ id: user_id, email, email_key: email, name: 'Ann', password_hash, email_confirmed: true })
    .execute();
  await db.insertInto('organisations').values({ id: org_id, name: 'Org', billing_email: email }).execute();
  await db.insertInto('memberships').values({ org_id, user_id, role: 'owner' }).execute();
  const { session_id, session_token } = await openSession(db, user_id, {
    ip: '127.0.0.1',
    user_agent: 'test',
  });
  return { user_id, org_id, session_id, email, token: session_token };
}

async function call(
  app: FastifyInstance,
  method: 'GET' | 'POST' | 'PUT' | 'DELETE',
  url: string,
  { as, body, headers }: CallOptions,
): Promise<Reply> {
  const token = typeof as === 'object' ? as.token : as;
  const answer = await app.inject({
    method,
    url,
    headers: { ...(token === undefined ? {} : { authorization: `Bearer ${token}` }), ...headers },
    ...(body === undefined ? {} : { payload: body as object }),
  });
  const parsed = answer.body === '' ? null : (JSON.parse(answer.body) as unknown);
  return { status: answer.statusCode, body: parsed, headers: answer.headers };
}
