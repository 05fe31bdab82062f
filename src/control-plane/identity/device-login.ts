/**
 * A login without a password in a program's hands (ADR 77, after RFC 8628): the program asks and shows a code; a person who is
 * logged in to the console compares it and confirms; the program then takes a session of that person, once.
 *
 *   asked ── confirm ──▶ confirmed ── take ──▶ gone, with a new session
 *     └── refuse, or ten minutes ──▶ gone      └── the confirming session ends ──▶ gone
 */
import { randomInt } from 'node:crypto';
import { AppError } from '../../shared/errors.ts';
import type { QuotaLimits } from '../../shared/quotas.ts';
import type { AuditLog } from '../audit/append.ts';
import { type Db, transaction } from '../db/pool.ts';
import { openVerified } from './login.ts';
import { findDeviceLogin, insertDeviceLogin, takeConfirmed } from './login-store.ts';
import type { Caller } from './sessions.ts';
import { lockUser } from './store.ts';
import { grantSudoTo } from './sudo.ts';
import { DEVICE_PREFIX, hashToken, newToken, tokenPrefix } from './tokens.ts';

/** Between two questions of a program. */
export const DEVICE_INTERVAL_S = 3;
/** The program is expected to log out, or to get itself an API key. */
const SESSION_LIFETIME_S = 3_600;

/** No vowels, so no words, and nothing that looks like a digit (RFC 8628, section 6.1). */
const LETTERS = 'BCDFGHJKLMNPQRSTVWXZ';
const HALF = 4;
export const USER_CODE_PATTERN = `^[${LETTERS}]{${HALF}}-[${LETTERS}]{${HALF}}$`;

function newUserCode(): string {
  const half = () => Array.from({ length: HALF }, () => LETTERS[randomInt(LETTERS.length)]).join('');
  return `${half()}-${half()}`;
}

export async function askForDeviceLogin(
  db: Db,
  { sudo, ip, user_agent }: Caller & { readonly sudo: boolean },
) {
  const device_code = newToken(DEVICE_PREFIX);
  const user_code = newUserCode();
  const login = { device_hash: hashToken(device_code), user_code, sudo, ip, user_agent };
  return { device_code, user_code, ...(await insertDeviceLogin(db, login)) };
}

interface Parts {
  readonly db: Db;
  readonly audit: AuditLog;
  readonly quotas: QuotaLimits;
}

/**
 * Opens the session of a confirmed login. @throws AppError CONFLICT until a person has answered; UNAUTHENTICATED if it was
 * refused, taken before, or too old; QUOTA_EXCEEDED
 */
export async function takeDeviceLogin(
  { db, audit, quotas }: Parts,
  device_code: string,
  caller: Caller & { readonly request_id: string },
) {
  if (tokenPrefix(device_code) !== DEVICE_PREFIX) throw gone();
  const device_hash = hashToken(device_code);
  return transaction(db, async (tx) => {
    const found = await findDeviceLogin(tx, device_hash);
    if (!found) throw gone();
    const { confirmed_by, user_id, ends_at, sudo } = found;
    if (confirmed_by === null)
      throw new AppError('CONFLICT', { message: WAITS, retry_after_seconds: DEVICE_INTERVAL_S });
    if (user_id === null || ends_at === null) throw gone();
    // Locked first, as everything is that ends the user's sessions, and with them this row.
    await lockUser(tx, user_id);
    if (!(await takeConfirmed(tx, device_hash))) throw gone();
    const left_s = Math.max(1, Math.floor((ends_at.getTime() - Date.now()) / 1000));
    const from = { ...caller, by: confirmed_by, lifetime_s: Math.min(SESSION_LIFETIME_S, left_s) };
    const opened = await openVerified(tx, { audit, quotas }, user_id, from);
    const { session_id } = opened;
    return { ...opened, sudo: sudo ? await grantSudoTo(tx, { session_id, user_id }) : null };
  });
}

const WAITS = 'Nobody has confirmed this login yet. Open its URL in a browser, and confirm the code there.';

function gone(): AppError {
  return new AppError('UNAUTHENTICATED', {
    message: 'This login was refused, was used before, or took longer than ten minutes. Begin again.',
  });
}
