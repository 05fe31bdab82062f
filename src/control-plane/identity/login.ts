/**
 * Logs an account in by password, with a second factor if the account has one. Every kind of login opens its session
 * here, by `finishLogin` or `openVerified`.
 *
 * With BERTH_PASSWORD_LOGIN=off the OpenID provider is the only login: `requirePasswordLogin` then refuses the routes
 * that take a password or a passkey.
 */
import { AppError } from '../../shared/errors.ts';
import type { UserId } from '../../shared/ids.ts';
import { type QuotaLimits, requireWithin } from '../../shared/quotas.ts';
import type { AuditLog } from '../audit/append.ts';
import type { AppContext } from '../context.ts';
import { type Db, type Tx, transaction } from '../db/pool.ts';
import { countInWindow } from '../db/shared-limit.ts';
import { checkPassword } from './accounts.ts';
import { beginAttempt, fail, noteLogin, succeed, withdraw } from './lockout.ts';
import { type Caller, type OpenedSession, openSession } from './sessions.ts';
import { countSessions, findUser, findUserByEmail, firstOrganisation, lockUser } from './store.ts';

/** The second factor that came with the password. `verifySecondFactor` verifies it. */
export type FactorVerdict = 'not_needed' | 'missing' | 'wrong' | 'right';

export interface LoginRequest extends Caller {
  readonly email: string;
  readonly password: string;
  readonly request_id: string;
}

export interface LoginParts {
  readonly db: Db;
  readonly audit: AuditLog;
  readonly quotas: QuotaLimits;
  readonly verifySecondFactor: (user_id: UserId) => Promise<FactorVerdict>;
}

const WRONG = { message: 'The e-mail address or the password is wrong.' };

/**
 * Opens a session. An unknown address costs the same work and gets the same answer as a wrong password.
 * @throws AppError UNAUTHENTICATED, MFA_REQUIRED, ACCOUNT_LOCKED, QUOTA_EXCEEDED
 */
export async function loginByPassword(parts: LoginParts, request: LoginRequest) {
  const { db } = parts;
  const attempt = await beginAttempt(db, request.email);
  const refuse = async (otherwise: AppError): Promise<never> => {
    throw await transaction(db, (tx) => fail(tx, attempt, otherwise, request.ip));
  };
  const user = await findUserByEmail(db, request.email);
  const right = await checkPassword(db, attempt, user?.password_hash ?? null, request.password);
  if (!user || !right) {
    return refuse(new AppError('UNAUTHENTICATED', WRONG));
  }
  const verdict = await parts.verifySecondFactor(user.id).catch(async (error: unknown) => {
    // Our failure must not count as a wrong password.
    await withdraw(db, attempt);
    throw error;
  });
  if (verdict === 'missing') {
    await withdraw(db, attempt);
    throw new AppError('MFA_REQUIRED');
  }
  if (verdict === 'wrong')
    await refuse(new AppError('MFA_REQUIRED', { message: 'The second factor is wrong.' }));
  await succeed(db, attempt);
  return finishLogin(parts, user.id, request, user.password_hash ?? undefined);
}

/** Of one account. */
const LOGINS_MAX = 300;
const LOGINS_WINDOW_S = 3_600;

/** Where a login comes from. */
export interface LoginCaller extends Caller {
  readonly request_id: string;
  /** What verified the user in place of Berth: the provider, or the session that confirmed a device login. */
  readonly by?: string;
  /** Default: {@link SESSION_LIFETIME_S}. */
  readonly lifetime_s?: number;
}

type OpeningParts = Pick<LoginParts, 'db' | 'audit' | 'quotas'>;

/** Opens a session for a verified user. @throws AppError UNAUTHENTICATED, QUOTA_EXCEEDED, RATE_LIMITED */
export async function finishLogin(
  parts: OpeningParts,
  user_id: UserId,
  caller: LoginCaller,
  proved_by?: string,
) {
  return transaction(parts.db, (tx) => openVerified(tx, parts, user_id, caller, proved_by));
}

/**
 * The same in a transaction. `proved_by`: the password hash that was verified. If it has changed since, its sessions have
 * ended and no new one is opened. @throws AppError UNAUTHENTICATED, QUOTA_EXCEEDED, RATE_LIMITED
 */
export async function openVerified(
  tx: Tx,
  { audit, quotas }: Omit<OpeningParts, 'db'>,
  user_id: UserId,
  caller: LoginCaller,
  proved_by?: string,
) {
  // A concurrent password change either waits for this session and ends it, or is visible here.
  await lockUser(tx, user_id);
  const user = await findUser(tx, user_id);
  if (!user) throw new AppError('UNAUTHENTICATED');
  if (proved_by !== undefined && proved_by !== user.password_hash) {
    throw new AppError('UNAUTHENTICATED', WRONG);
  }
  requireWithin('sessions', quotas.sessions, await countSessions(tx, user_id));
  const { count, ends_in_ms } = await countInWindow(tx, `logins:${user_id}`, LOGINS_WINDOW_S);
  // Each leaves an audit entry, which is kept for good.
  if (count > LOGINS_MAX)
    throw new AppError('RATE_LIMITED', {
      message: `The account has logged in ${LOGINS_MAX} times in an hour. Wait, or use an API key for programs.`,
      retry_after_seconds: Math.ceil(ends_in_ms / 1000),
    });
  const { ip, user_agent, by, lifetime_s } = caller;
  const session: OpenedSession = await openSession(tx, user.id, { ip, user_agent }, lifetime_s);
  await noteLogin(tx, user.id, session, { ip, user_agent });
  const org_id = await firstOrganisation(tx, user.id);
  if (org_id !== null) {
    await audit.append(tx, org_id, {
      actor: user.id,
      action: 'auth.login',
      target: session.session_id,
      ip,
      request_id: caller.request_id,
      data: { user_agent, ...(by === undefined ? {} : { by }) },
    });
  }
  return { user, ...session };
}

/** A hook of the routes that take a password or a passkey. @throws AppError FORBIDDEN with BERTH_PASSWORD_LOGIN=off */
export function requirePasswordLogin({ oidc, password_login }: Pick<AppContext, 'oidc' | 'password_login'>) {
  return async (): Promise<void> => {
    if (password_login) return;
    throw new AppError('FORBIDDEN', {
      message: `Passwords and passkeys are switched off here. Log in at ${oidc?.provider.name ?? 'the OpenID provider'}, in the console.`,
    });
  };
}
