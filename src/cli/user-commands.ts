/** `berth user …`, on the server. */
import { randomInt } from 'node:crypto';
import type { AuditLog } from '../control-plane/audit/append.ts';
import { type Tx, transaction } from '../control-plane/db/pool.ts';
import { unlock } from '../control-plane/identity/lockout.ts';
import { removeAllFactors } from '../control-plane/identity/mfa/factors.ts';
import { hashPassword, setPassword } from '../control-plane/identity/passwords.ts';
import { findUserByEmail } from '../control-plane/identity/store.ts';
import { organisationsOf } from '../control-plane/organisations/member-store.ts';
import { rfc3339 } from '../shared/clock.ts';
import type { UserId } from '../shared/ids.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';
import type { ServerContext } from './server-context.ts';
import { timeCell } from './table.ts';
import type { Terminal } from './terminal.ts';

const ALPHABET = 'abcdefghjkmnpqrstuvwxyzABCDEFGHJKLMNPQRSTUVWXYZ23456789';

/** 20 characters of 55: 115 bits. */
function generatePassword(): string {
  return Array.from({ length: 20 }, () => ALPHABET.charAt(randomInt(ALPHABET.length))).join('');
}

export async function listUsers({ db }: ServerContext, terminal: Terminal): Promise<string> {
  const rows = await db
    .selectFrom('users as u')
    .leftJoin('lockouts as l', 'l.email_key', 'u.email_key')
    .select(['u.id', 'u.email', 'u.name', 'u.created_at', 'l.locked_until'])
    .orderBy('u.id', 'desc')
    .execute();
  return terminal.listText(rows, {
    headings: ['E-MAIL', 'NAME', 'CREATED', 'LOCKED UNTIL', 'ID'],
    row: ({ id, email, name, created_at, locked_until }) => {
      const is_locked = locked_until !== null && locked_until.getTime() > Date.now();
      return [
        email,
        name,
        timeCell(rfc3339(created_at)),
        timeCell(is_locked ? rfc3339(locked_until) : null, '-'),
        id,
      ];
    },
    quiet: ({ email }) => email,
    empty: 'No accounts.',
  });
}

export const noAccount = (email: string) =>
  new CommandError(`there is no account ${email}; berth user ls lists them`, { exit_code: EXIT.not_found });

export async function unlockUser({ db, audit }: ServerContext, email: string): Promise<string> {
  const user = await findUserByEmail(db, email);
  const was = await transaction(db, async (tx) => {
    const ended = await unlock(tx, email);
    if (ended && user) await note(tx, audit, user.id, 'auth.unlock');
    return ended;
  });
  if (!was && !user) throw noAccount(email);
  if (!was) return `${email} was not locked and has no failed attempts.\n`;
  return `Unlocked ${email}.\n`;
}

/** Sets a generated password; ends every session and a lock. */
export async function resetPassword({ db, audit, config }: ServerContext, email: string): Promise<string> {
  const user = await findUserByEmail(db, email);
  if (!user) throw noAccount(email);
  const password = generatePassword();
  const password_hash = await hashPassword(password);
  const { factors } = await transaction(db, async (tx) => {
    const remaining = await setPassword(tx, user.id, { password_hash, how: 'server', actor: 'operator' });
    await unlock(tx, email);
    await note(tx, audit, user.id, 'auth.reset_password_on_server');
    return remaining;
  });
  const hint =
    factors === 0
      ? ''
      : `The account keeps its second factors. To remove them: berth user reset-mfa ${user.email}\n`;
  const off = config.password_login
    ? ''
    : 'Passwords are switched off: set BERTH_PASSWORD_LOGIN=on and restart Berth before you use it.\n';
  return `New password of ${user.email}, shown only once: ${password}\n${hint}${off}`;
}

/** For an account whose owner lost every factor, or that has somebody else's. */
export async function resetMfa({ db, audit }: ServerContext, email: string): Promise<string> {
  const user = await findUserByEmail(db, email);
  if (!user) throw noAccount(email);
  const removed = await transaction(db, async (tx) => {
    const count = await removeAllFactors(tx, user.id, 'operator');
    if (count > 0) await note(tx, audit, user.id, 'auth.reset_mfa_on_server');
    return count;
  });
  if (removed === 0) return `${user.email} has no second factor.\n`;
  const were = removed === 1 ? '1 was' : `${removed} were`;
  return `${user.email} no longer has a second factor; ${were} removed, with the recovery codes. Its sessions continue: berth user reset-password ends them.\n`;
}

/** Appends to the audit log of each organisation of the account, in the transaction of the action. */
export async function note(tx: Tx, audit: AuditLog, user_id: UserId, action: string): Promise<void> {
  for (const org_id of await organisationsOf(tx, user_id)) {
    const entry = { actor: 'operator', action, target: user_id, ip: null, request_id: null, data: {} };
    await audit.append(tx, org_id, entry);
  }
}
