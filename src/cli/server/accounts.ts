/**
 * Implements the commands that run on the server and concern accounts: reset passwords and second factors, unlock
 * accounts, check them at the OpenID provider and unlink them. Also the commands on organisations, their quotas and the
 * audit log.
 */
import { randomInt } from 'node:crypto';
import type { AuditLog } from '../../control-plane/audit/append.ts';
import { listLogs } from '../../control-plane/audit/store.ts';
import { type Db, type Tx, transaction } from '../../control-plane/db/pool.ts';
import { unlock } from '../../control-plane/identity/lockout.ts';
import { type Checked, checkIdentityOf } from '../../control-plane/identity/login-at-provider.ts';
import { removeAllFactors } from '../../control-plane/identity/mfa/factors.ts';
import {
  deleteIdentities,
  identitySealer,
  listIdentified,
} from '../../control-plane/identity/oidc/identity-store.ts';
import {
  type OidcContext,
  OidcProvider,
  ProviderError,
  redirectUri,
} from '../../control-plane/identity/oidc/provider.ts';
import { hashPassword, setPassword } from '../../control-plane/identity/passwords.ts';
import { deleteOtherSessions, findUserByEmail } from '../../control-plane/identity/store.ts';
import { organisationsOf } from '../../control-plane/organisations/member-store.ts';
import { type QuotaChange, readQuota, setQuota } from '../../control-plane/organisations/quotas.ts';
import { rfc3339 } from '../../shared/clock.ts';
import type { OrgId, UserId } from '../../shared/ids.ts';
import { ORGANISATION_QUOTAS, type OrganisationQuota, parseLimit, UNLIMITED } from '../../shared/quotas.ts';
import { CommandError, EXIT } from '../command-error.ts';
import { numberCell, plural, quotaText, table, timeCell } from '../table.ts';
import type { Terminal } from '../terminal.ts';
import type { ServerContext } from './context.ts';

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

const noAccount = (email: string) =>
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

interface LinkedUser {
  readonly id: UserId;
  readonly email: string;
}

function contextOf({ config, root_key, db, audit }: ServerContext): OidcContext {
  const { oidc, public_url, quotas, signups } = config;
  if (oidc === null) {
    throw new CommandError('BERTH_OIDC_ISSUER is not set; give this command the settings of the server');
  }
  const provider = new OidcProvider({ ...oidc, redirect_uri: redirectUri(public_url) });
  return { db, audit, quotas, signups, provider, identities: identitySealer(root_key) };
}

/** Asks the provider about one account or all, without waiting for the hourly check. A line for each. */
export async function syncUsers(server: ServerContext, email: string | undefined): Promise<string> {
  const context = contextOf(server);
  const linked = await listIdentified(server.db, context.provider.issuer);
  const chosen =
    email === undefined ? linked : linked.filter((each) => each.email.toLowerCase() === email.toLowerCase());
  if (email !== undefined && chosen.length === 0) {
    if (!(await findUserByEmail(server.db, email))) throw noAccount(email);
    throw new CommandError(
      `${email} is not linked to ${context.provider.name}: it has never logged in there`,
    );
  }
  if (chosen.length === 0) return `No account is linked to ${context.provider.name}.\n`;
  const lines: string[] = [];
  for (const user of chosen) lines.push(`${user.email}: ${await sync(context, user)}\n`);
  return lines.join('');
}

async function sync(context: OidcContext, { id }: LinkedUser): Promise<string> {
  try {
    return described(await checkIdentityOf(context, id));
  } catch (error) {
    if (!(error instanceof ProviderError)) throw error;
    const { name } = context.provider;
    throw new CommandError(
      `${name} gave no usable answer, and nothing was changed for this account: ${error.message}`,
      {
        next: 'berth doctor',
        exit_code: EXIT.unavailable,
      },
    );
  }
}

function described(checked: Checked): string {
  if (checked.outcome === 'busy') return 'is being checked at this moment';
  if (checked.outcome === 'sessions_ended') {
    const why =
      checked.because === 'refused' ? 'the provider refuses it' : 'it cannot be checked without a login';
    return `${why}; ended ${checked.count} ${checked.count === 1 ? 'session' : 'sessions'}. Its API and SSH keys remain`;
  }
  if (!checked.groups_known) return 'the provider does not tell its groups; nothing changed';
  if (checked.changes.length === 0) return 'nothing changed';
  return checked.changes
    .map(({ change, org_id, role }) =>
      change === 'last_owner_kept'
        ? `stays the last owner of ${org_id}`
        : change === 'removed'
          ? `no longer ${role} of ${org_id}`
          : `now ${role} of ${org_id}`,
    )
    .join(', ');
}

/** The next login at the provider is then that of a stranger. Ends every session. */
export async function unlinkUser({ db, audit }: ServerContext, email: string): Promise<string> {
  const user = await findUserByEmail(db, email);
  if (!user) throw noAccount(email);
  const count = await transaction(db, async (tx) => {
    const gone = await deleteIdentities(tx, user.id);
    if (gone === 0) return 0;
    await deleteOtherSessions(tx, user.id, null);
    await note(tx, audit, user.id, 'auth.unlink_identity');
    return gone;
  });
  if (count === 0) return `${user.email} is not linked to an OpenID provider.\n`;
  return `${user.email} is no longer linked, and its sessions have ended. Its next login at the provider links it again if the address is verified there.\n`;
}

/** An organisation by id or name; a name must be unambiguous. */
async function findOrg(db: Db, text: string): Promise<{ id: OrgId; name: string }> {
  const found = await db
    .selectFrom('organisations')
    .select(['id', 'name'])
    .where((eb) => eb.or([eb('id', '=', text as OrgId), eb('name', '=', text)]))
    .limit(2)
    .execute();
  const [first, second] = found;
  if (!first)
    throw new CommandError(`there is no organisation ${text}; berth org quota lists them`, {
      exit_code: EXIT.not_found,
    });
  if (second) throw new CommandError(`several organisations are called ${text}; give the id of one`);
  return first;
}

export async function listOrgs({ db }: ServerContext, terminal: Terminal): Promise<string> {
  const rows = await db
    .selectFrom('organisations as o')
    .select([
      'o.id',
      'o.name',
      (eb) =>
        eb
          .selectFrom('memberships as m')
          .select(eb.fn.countAll<number>().as('n'))
          .whereRef('m.org_id', '=', 'o.id')
          .as('members'),
    ])
    .orderBy('o.id', 'desc')
    .execute();
  return terminal.listText(rows, {
    headings: ['NAME', 'MEMBERS', 'ID'],
    row: ({ id, name, members }) => [name, numberCell(members ?? 0), id],
    quiet: ({ id }) => id,
    empty: 'No organisations.',
  });
}

/** Changes the given quotas (a number, `unlimited` or `default`), then shows all quotas of the organisation. */
export async function orgQuota(
  { db, audit, config }: ServerContext,
  org: string,
  change: Partial<Record<OrganisationQuota, string>>,
): Promise<string> {
  const { id, name } = await findOrg(db, org);
  const limits: QuotaChange = {};
  for (const [quota, text] of Object.entries(change) as [OrganisationQuota, string][]) {
    const limit = text === 'default' ? text : parseLimit(text);
    if (limit === undefined) {
      throw new CommandError(
        `--${quota.replaceAll('_', '-')} takes a whole number up to 2147483647, unlimited or default, not ${text}`,
        { exit_code: EXIT.usage },
      );
    }
    limits[quota] = limit;
  }
  if (Object.keys(limits).length > 0) {
    await transaction(db, async (tx) => {
      await setQuota(tx, id, limits);
      const entry = { actor: 'operator', action: 'org.change_quota', target: id, ip: null, request_id: null };
      await audit.append(tx, id, { ...entry, data: limits });
    });
  }
  const states = await readQuota(db, config.quotas, id);
  const rows = ORGANISATION_QUOTAS.map((quota) => {
    const { used, limit, source } = states[quota];
    const text = (value: number) => quotaText(quota, value);
    // The name of the option that sets it.
    const option = quota.replaceAll('_', '-');
    return [option, text(used), limit === null ? UNLIMITED : text(limit), source];
  });
  return `${name} (${id})\n${table(['QUOTA', 'USED', 'LIMIT', 'FROM'], rows)}`;
}

interface Logged {
  readonly id: OrgId;
  /** Null: a deleted organisation, whose log stays. */
  readonly name: string | null;
}

/** The given organisation, or all, and deleted ones with an audit log. */
async function listLogged(db: Db, org: string | undefined): Promise<Logged[]> {
  const there = await db.selectFrom('organisations').select(['id', 'name']).orderBy('id').execute();
  const known = new Set(there.map(({ id }) => id));
  const deleted = (await listLogs(db)).filter((id) => !known.has(id));
  const logged = [...there, ...deleted.map((id) => ({ id, name: null }))];
  if (org === undefined) return logged;
  const gone = logged.find(({ id, name }) => id === org && name === null);
  return [gone ?? (await findOrg(db, org))];
}

/** Verifies the audit log of one organisation, or of all, deleted ones included. */
export async function verifyAudit({ db, audit }: ServerContext, org: string | undefined): Promise<string> {
  const orgs = await listLogged(db, org);
  let text = '';
  const broken: string[] = [];
  for (const { id, name } of orgs) {
    const { entries, broken_at, unsealed, altered } = await audit.verify(db, id);
    const org_name = name === null ? `${id}, deleted` : `${name} (${id})`;
    if (broken_at !== null) broken.push(`${org_name}: entry ${broken_at} was changed, removed or inserted`);
    if (altered !== null)
      broken.push(`${org_name}: entry ${altered}, not sealed yet, was changed or inserted`);
    if (broken_at !== null || altered !== null) continue;
    text += `${org_name}: ${plural(entries, 'entry', 'entries')}, intact${unsealed > 0 ? `; ${unsealed} more not yet sealed` : ''}\n`;
  }
  if (broken.length > 0) throw new CommandError(broken.join('\n'));
  return text;
}
