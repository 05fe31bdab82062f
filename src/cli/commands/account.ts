/**
 * The commands `berth account …`, `session …` and `mfa …`. They change the user's name, address and password, delete
 * the account, list and end its sessions, and manage its second factors. A passkey can be added only in the console,
 * because it needs a browser.
 */
import { type Answer, type Berth, BerthError, type User } from '../../../client/src/berth.ts';
import type { MfaFactor, Session } from '../../../client/src/generated.ts';
import { programName } from '../../../client/src/words.ts';
import type { Call, Command } from '../command.ts';
import { CommandError, EXIT, UsageError } from '../command-error.ts';
import { collect, findNamed, type ResourceKind } from '../reading.ts';
import { readSettings } from '../server-facts.ts';
import { inSession, proofOf } from '../session.ts';
import { ago, cell, flagCell, plural, timeCell, when } from '../table.ts';
import { mailTokenOf, typedTwice } from '../terminal.ts';
import { RESET_PASSWORD } from './login.ts';

const rowsOf = (user: User) =>
  [
    ['e-mail', user.email_confirmed ? user.email : `${user.email} (not confirmed)`],
    ['name', user.name || '-'],
    ['id', user.id],
    ['created', when(user.created_at)],
    ['second factor', user.mfa_enabled ? 'yes' : 'no: your password alone gives access'],
  ] as const;

function printUser({ terminal }: Call, user: User): undefined {
  terminal.one(user, { rows: rowsOf, quiet: ({ id }) => id });
}

async function setEmail(call: Call): Promise<undefined> {
  const { args, options, session, terminal } = call;
  const email = args[0] ?? '';
  await session.withPassword(proofOf(options), (berth, password) =>
    berth.call('changeEmail', { body: { email, password } }),
  );
  const { mail } = await readSettings(session.url);
  const told =
    mail === 'files'
      ? `This server sends no mail: the mail to ${email} is a file in the data folder of the server, in mail/. Its operator can pass the link on.`
      : `A mail to ${email} has a link.`;
  const next = 'berth account confirm LINK';
  terminal.done(`${told} The address changes once it is confirmed: ${next}`, { email });
}

/** Keeps the address of the login in step, which the next question for the password names. */
function rememberEmail({ session }: Call, { id, email }: User): void {
  const { profile, profile_name } = session;
  if (profile?.user_id === id && profile.email !== email) session.keep(profile_name, { ...profile, email });
}

async function confirmEmail(call: Call): Promise<undefined> {
  const token = mailTokenOf(call.args[0] ?? '');
  const user = await inSession(call, async (berth) => {
    await berth.call('confirmEmail', { body: { token } });
    return berth.call('getMe', {});
  });
  rememberEmail(call, user);
  call.terminal.done(`${user.email} is confirmed.`, user, user.id);
}

async function setPassword(call: Call): Promise<undefined> {
  const { options, session, terminal } = call;
  const proof = proofOf(options);
  const profile = session.requireProfile();
  const [current_password, new_password] = proof.password_stdin
    ? await twoLines(call)
    : [await session.password(profile, proof), await typedTwice(call, 'New password')];
  const { berth, session: opened } = await session.openAsked(profile.email, current_password, proof.totp);
  try {
    await berth.call('changePassword', { body: { current_password, new_password } });
  } finally {
    await berth.call('logout', {}).catch(() => undefined);
  }
  const what = 'All sessions have ended. API keys, and so the logins of command lines, continue.';
  terminal.done(`The password is changed. ${what}`, { changed: opened.user.id });
}

async function twoLines({ terminal }: Call): Promise<readonly [string, string]> {
  const [current = '', next = ''] = (await terminal.stdin()).split('\n');
  if (next === '') throw new UsageError('stdin needs two lines: the current password and the new one');
  return [current, next];
}

async function deleteAccount(call: Call): Promise<undefined> {
  const { options, session, terminal } = call;
  const { email } = session.requireProfile();
  if (options.text('yes') === undefined && !terminal.interactive) {
    throw new CommandError(
      `this deletes the account ${email} and the organisations that only it belongs to`,
      { again: `--yes ${email}`, exit_code: EXIT.usage },
    );
  }
  const said =
    options.text('yes') ??
    (await terminal.ask(
      `This deletes your account, the organisations that only you belong to, and all that is in them. Type ${email} to confirm`,
      null,
    ));
  if (said !== email) throw new CommandError('that is not the address of this account; nothing was deleted');
  await inSession(call, (berth) => berth.call('deleteMe', {}));
  session.forget(session.profile_name);
  terminal.done(`Deleted the account ${email}.`, { deleted: email });
}

const SESSION: ResourceKind<Session> = {
  what: 'session',
  list: 'berth session ls',
  also: ({ user_agent, ip }) => [programName(user_agent), ip],
  detail: ({ user_agent, ip, last_seen_at }) =>
    `${programName(user_agent)}, from ${ip}, seen ${ago(last_seen_at)}`,
};

async function listSessions(call: Call): Promise<undefined> {
  const sessions = await inSession(call, (berth) => collect(berth.list('listSessions', {})));
  call.terminal.list(sessions, {
    headings: ['PROGRAM', 'ADDRESS', 'LAST SEEN', 'STARTED', 'ENDS', 'ID'],
    row: ({ user_agent, current, ip, last_seen_at, created_at, ends_at, id }) => [
      cell(`${programName(user_agent)}${current ? ' (this command)' : ''}`, programName(user_agent)),
      ip,
      timeCell(last_seen_at),
      timeCell(created_at),
      timeCell(ends_at),
      id,
    ],
    more: {
      headings: ['CURRENT', 'USER AGENT'],
      row: ({ current, user_agent }) => [flagCell(current), user_agent ?? '-'],
    },
    quiet: ({ id }) => id,
    empty: 'No sessions.',
  });
}

async function endSessions(call: Call): Promise<undefined> {
  const { args, options, terminal } = call;
  const [said] = args;
  if ((said === undefined) !== options.flag('others')) {
    throw new UsageError('name a session, or end all with --others');
  }
  if (said === undefined) {
    const ended = await inSession(call, (berth) => berth.call('revokeOtherSessions', {}));
    return void terminal.done(
      `Ended ${plural(ended.count, 'session')}. API keys, and so the logins of command lines, continue.`,
      ended,
      String(ended.count),
    );
  }
  const { id, user_agent, ip } = await inSession(call, async (berth) => {
    const found = await findNamed(berth.list('listSessions', {}), said, SESSION);
    await berth.call('revokeSession', { path: { id: found.id } });
    return found;
  });
  terminal.done(`Ended the session of ${programName(user_agent)}, from ${ip}.`, { ended: id }, id);
}

const BLACK_ON_WHITE = '\u001b[30;107m';
const RESET = '\u001b[0m';
const HALVES = { true: { true: '█', false: '▀' }, false: { true: '▄', false: ' ' } } as const;
const half = (upper: boolean, lower: boolean) => HALVES[`${upper}`][`${lower}`];

/** A QR code for a terminal: two rows of modules a line, black on white in any colour scheme, because cameras need that. */
async function qrCode(text: string): Promise<string> {
  const { encode } = await import('uqr');
  const { data } = encode(text, { border: 2 });
  let lines = '';
  for (let y = 0; y < data.length; y += 2) {
    const upper = data[y] ?? [];
    const lower = data[y + 1] ?? [];
    const cells = upper.map((dark, x) => half(dark, lower[x] ?? false)).join('');
    lines += `${BLACK_ON_WHITE}${cells}${RESET}\n`;
  }
  return lines;
}

type Totp = Extract<Answer<'addMfaFactor'>, { type: 'totp' }>;
type Confirmed = Answer<'verifyMfaFactor'>;

const FACTOR: ResourceKind<MfaFactor> = {
  what: 'second factor',
  list: 'berth mfa ls',
  detail: ({ type, created_at }) => `${KINDS[type]}, added ${ago(created_at)}`,
};
const KINDS = { totp: 'authenticator app', webauthn: 'passkey' } as const;
const TRIES = 3;

function codeOf(text: string): string {
  const code = text.replaceAll(' ', '');
  if (/^\d{6}$/.test(code)) return code;
  throw new UsageError('the code of an authenticator has six digits');
}

async function listFactors(call: Call): Promise<undefined> {
  call.terminal.list(await inSession(call, (berth) => collect(berth.list('listMfaFactors', {}))), {
    headings: ['NAME', 'KIND', 'LAST USED', 'ADDED', 'ID'],
    row: ({ name, type, confirmed_at, last_used_at, created_at, id }) => [
      cell(confirmed_at === null ? `${name} (not confirmed)` : name, name),
      KINDS[type],
      timeCell(last_used_at),
      timeCell(created_at),
      id,
    ],
    more: { headings: ['CONFIRMED'], row: ({ confirmed_at }) => [timeCell(confirmed_at)] },
    quiet: ({ id }) => id,
    empty: 'No second factor: your password alone gives access. Add one: berth mfa add',
  });
}

async function addFactor(call: Call): Promise<undefined> {
  const { args, terminal } = call;
  const asks = terminal.interactive && terminal.format === 'human';
  await inSession(call, async (berth) => {
    const added = await berth.call('addMfaFactor', {
      body: { type: 'totp', name: args[0] ?? 'authenticator' },
    });
    if (added.type !== 'totp') return;
    if (!asks) {
      const next = `berth mfa verify ${added.id} CODE`;
      const sentence = `Secret for the authenticator, shown only once: ${added.secret}\n${added.otpauth_url}\nConfirm it within an hour: ${next}`;
      return terminal.done(sentence, added, `${added.id} ${added.secret}`);
    }
    terminal.say('Scan this with your authenticator app, or type the secret into it:');
    terminal.picture(await qrCode(added.otpauth_url));
    terminal.say(`Secret: ${added.secret}`);
    printConfirmed(call, added.name, await confirmAsked(call, berth, added));
  });
}

/** Asks for the code again after a wrong one. */
async function confirmAsked({ terminal }: Call, berth: Berth, { id }: Totp): Promise<Confirmed> {
  for (let tried = 1; ; tried++) {
    const said = (await terminal.ask('Code of the app', null)).replaceAll(' ', '');
    try {
      return await berth.call('verifyMfaFactor', { path: { id }, body: { code: said } });
    } catch (error) {
      if (!(error instanceof BerthError) || error.status !== 400 || tried === TRIES) throw error;
      terminal.warn('That code is wrong. Wait for the next one.');
    }
  }
}

function printConfirmed({ terminal }: Call, name: string, confirmed: Confirmed): void {
  const { recovery_codes } = confirmed;
  const codes =
    recovery_codes === null
      ? 'Your recovery codes stay valid.'
      : `Recovery codes, shown only once. Each is good for one login without the app; keep them apart from your password:\n${recovery_codes.join('\n')}`;
  const use = recovery_codes === null ? 'a login accepts it too' : 'a login needs it';
  terminal.done(`${name} is confirmed: ${use} from now on.\n${codes}`, confirmed, recovery_codes?.join('\n'));
}

async function verifyFactor(call: Call): Promise<undefined> {
  const [said = '', text = ''] = call.args;
  const code = codeOf(text);
  await inSession(call, async (berth) => {
    const { id, name } = await findNamed(berth.list('listMfaFactors', {}), said, FACTOR);
    printConfirmed(call, name, await berth.call('verifyMfaFactor', { path: { id }, body: { code } }));
  });
}

async function removeFactor(call: Call): Promise<undefined> {
  const gone = await inSession(call, async (berth) => {
    const found = await findNamed(berth.list('listMfaFactors', {}), call.args[0] ?? '', FACTOR);
    await berth.call('removeMfaFactor', { path: { id: found.id } });
    return found;
  });
  call.terminal.done(`Removed ${gone.name}.`, { removed: gone.id }, gone.id);
}

export const ACCOUNT_COMMANDS: readonly Command[] = [
  {
    name: 'account show',
    password: 'unless_sudo',
    short: ['account'],
    summary: 'show your account',
    example: 'berth account show',
    run: async (call) => printUser(call, await inSession(call, (berth) => berth.call('getMe', {}))),
  },
  {
    name: 'account rename',
    password: 'unless_sudo',
    args: ['NAME'],
    summary: 'change your name',
    example: "berth account rename 'Ada Lovelace'",
    run: async (call) => {
      const body = { name: call.args[0] ?? '' };
      return printUser(call, await inSession(call, (berth) => berth.call('changeMe', { body })));
    },
  },
  {
    name: 'account email',
    password: 'always',
    args: ['ADDRESS'],
    fields: { email: 'ADDRESS' },
    summary: 'change your address; a mail to it has a link to confirm it',
    example: 'berth account email ada@example.org',
    run: setEmail,
  },
  {
    name: 'account confirm',
    password: 'unless_sudo',
    args: ['LINK'],
    fields: { token: 'LINK' },
    summary: 'confirm your first or a new address, by the link or the token of the mail',
    example: 'berth account confirm https://berth.example.org/email#token=…',
    run: confirmEmail,
  },
  {
    name: 'account password',
    password: 'always',
    fields: { current_password: 'the current password', new_password: 'the new password' },
    summary: 'change your password; ends all sessions, and API keys continue',
    example: 'berth account password',
    options: {
      'password-stdin': { type: 'boolean', help: 'stdin has the current password, then the new one' },
    },
    run: setPassword,
  },
  RESET_PASSWORD,
  {
    name: 'account rm',
    password: 'unless_sudo',
    summary: 'delete your account, with the organisations that only you belong to',
    example: 'berth account rm',
    options: {
      yes: {
        type: 'string',
        short: 'y',
        value: 'ADDRESS',
        help: 'do not ask; the address of the account confirms it',
      },
    },
    run: deleteAccount,
  },
  {
    name: 'session ls',
    password: 'unless_sudo',
    summary: 'list where your account is logged in',
    example: 'berth session ls',
    run: listSessions,
  },
  {
    name: 'session rm',
    password: 'unless_sudo',
    args: ['[SESSION]'],
    summary: 'end a session, by its id, program or address; --others ends all but that of this command',
    example: 'berth session rm --others',
    options: { others: { type: 'boolean', help: 'all other sessions' } },
    run: endSessions,
  },
  {
    name: 'mfa ls',
    password: 'unless_sudo',
    summary: 'list your second factors',
    example: 'berth mfa ls',
    run: listFactors,
  },
  {
    name: 'mfa add',
    password: 'unless_sudo',
    args: ['[NAME]'],
    summary:
      'add an authenticator app: shows a QR code and its secret, asks for a code, prints recovery codes',
    example: 'berth mfa add phone',
    run: addFactor,
  },
  {
    name: 'mfa verify',
    password: 'unless_sudo',
    args: ['FACTOR', 'CODE'],
    summary: 'confirm an authenticator app that was added without a terminal',
    example: 'berth mfa verify phone 492039',
    run: verifyFactor,
  },
  {
    name: 'mfa rm',
    password: 'unless_sudo',
    args: ['FACTOR'],
    summary: 'remove a second factor; with the last one, the recovery codes end',
    example: 'berth mfa rm phone',
    run: removeFactor,
  },
];
