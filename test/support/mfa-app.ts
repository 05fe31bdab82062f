/** The routes of second factors on a real PostgreSQL of the test file's own, with people to use them. */
import { randomBytes } from 'node:crypto';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after } from 'node:test';
import Fastify, { type FastifyInstance } from 'fastify';
import { AuditLog } from '../../src/audit/append.ts';
import { finishLogin } from '../../src/auth/login.ts';
import { hashPassword } from '../../src/auth/passwords.ts';
import { openSession } from '../../src/auth/sessions.ts';
import { grantSudo } from '../../src/auth/sudo.ts';
import { pathsIn } from '../../src/config/paths.ts';
import { migrate } from '../../src/db/migrate.ts';
import { type Db, openPool } from '../../src/db/pool.ts';
import { registerAccess } from '../../src/http/access.ts';
import type { App } from '../../src/http/app.ts';
import type { AppContext } from '../../src/http/context.ts';
import { SUDO_COOKIE, setRefreshCookie } from '../../src/http/cookies.ts';
import { sendError } from '../../src/http/errors.ts';
import { CursorSealer } from '../../src/http/pagination.ts';
import { RateLimits } from '../../src/http/rate-limits.ts';
import { userView } from '../../src/http/v1/me.ts';
import { registerMfa } from '../../src/http/v1/mfa.ts';
import { startEmbeddedPostgres } from '../../src/launch/embedded-postgres.ts';
import { rfc3339 } from '../../src/lib/clock.ts';
import { newId, type OrgId, type SessionId, type UserId } from '../../src/lib/ids.ts';
import { Sealer } from '../../src/lib/seal.ts';
import type { Mail } from '../../src/mail/mailer.ts';

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
  // biome-ignore lint/suspicious/noExplicitAny: the body of whatever was asked for
  readonly body: any;
  readonly headers: Record<string, unknown>;
}

export interface MfaApp {
  readonly db: Db;
  readonly context: AppContext & { readonly now: () => number };
  /** Seconds since the epoch, where the test wants the codes' clock to stand. */
  readonly clock: { now_s: number };
  readonly mails: Mail[];
  /** What was logged: the reason where there is one, else the message. */
  readonly logged: string[];
  person(): Promise<Person>;
  /** Value of a Cookie header. */
  sudo(person: Person): Promise<string>;
  call(method: 'GET' | 'POST' | 'DELETE', url: string, options?: CallOptions): Promise<Reply>;
}

export interface CallOptions {
  readonly as?: Person | string;
  readonly body?: unknown;
  readonly headers?: Record<string, string>;
}

/** For a whole file, to be awaited at its top. */
export async function mfaAppForFile(): Promise<MfaApp> {
  const db = await databaseForFile();
  const clock = { now_s: Math.floor(Date.now() / 1000) };
  const mails: Mail[] = [];
  const logged: string[] = [];
  const note = ({ reason }: { reason?: string }, message: string) => void logged.push(reason ?? message);
  const secret_key = randomBytes(32);
  const context = {
    db,
    log: { info: note, warn: note },
    secret_key,
    audit: new AuditLog(secret_key),
    idempotency: new Sealer(secret_key, 'test idempotency'),
    factors: new Sealer(secret_key, 'test factors'),
    mailer: { send: (mail: Mail) => void mails.push(mail), close: async () => undefined },
    public_url: 'http://127.0.0.1:7400',
    now: () => clock.now_s * 1000,
  } as unknown as MfaApp['context'];
  const app = await createMfaApp(context);
  after(() => app.close());
  return {
    db,
    context,
    clock,
    mails,
    logged,
    person: () => makePerson(db),
    sudo: async ({ session_id, user_id, org_id }) => {
      const credential = { kind: 'session', id: session_id, user_id } as const;
      const { token } = await grantSudo(
        db,
        { credential, org_id, role: 'owner', scopes: new Set() },
        PASSWORD,
      );
      return `${SUDO_COOKIE}=${token}`;
    },
    call: (method, url, options = {}) => call(app, method, url, options),
  };
}

async function databaseForFile(): Promise<Db> {
  const folder = await mkdtemp(join(tmpdir(), 'berth-mfa-'));
  const server = await startEmbeddedPostgres(pathsIn(join(folder, 'data')), { say: () => undefined });
  await migrate(server.database_url);
  const db = openPool(server.database_url, () => undefined);
  after(async () => {
    await db.destroy();
    await server.stop();
    await rm(folder, { recursive: true, force: true, maxRetries: 5 });
  });
  return db;
}

async function createMfaApp(context: AppContext): Promise<FastifyInstance> {
  const fastify = Fastify({
    ajv: { customOptions: { removeAdditional: false, coerceTypes: false, allErrors: false } },
  }) as unknown as FastifyInstance;
  const limits = new RateLimits(false);
  registerAccess(fastify, context.db, limits);
  fastify.setErrorHandler((error, request, reply) => sendError(error, request, reply));
  fastify.addHook('preValidation', async (request) => {
    if (request.routeOptions.schema?.body !== undefined) request.body ??= {};
  });
  registerMfa(
    fastify as unknown as App,
    context,
    new CursorSealer(context.secret_key),
    limits,
    async (request, reply, user_id) => {
      const caller = { ip: request.ip, user_agent: 'test', request_id: request.id };
      const { user, session_token, refresh_token, expires_at } = await finishLogin(context, user_id, caller);
      setRefreshCookie(reply, refresh_token);
      return { user: userView(user), session_token, expires_at: rfc3339(expires_at) };
    },
  );
  await fastify.ready();
  return fastify;
}

async function makePerson(db: Db): Promise<Person> {
  const user_id = newId('usr');
  const org_id = newId('org');
  const email = `${user_id}@example.org`;
  const password_hash = await PASSWORD_HASH;
  await db
    .insertInto('users')
    .values({ id: user_id, email, email_key: email, name: 'Ann', password_hash })
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
  method: 'GET' | 'POST' | 'DELETE',
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
