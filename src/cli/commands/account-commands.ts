/** `berth account …`: the user's name, address and password. */
import type { User } from '../../../client/src/berth.ts';
import { type Call, type Command, PROOF } from '../command.ts';
import { CommandError, UsageError } from '../command-error.ts';
import { EXIT } from '../exit-codes.ts';
import { asUser, proofOf } from '../session.ts';
import { readSettings } from '../settings.ts';
import { when } from '../table.ts';
import { mailTokenOf, typedTwice } from '../terminal.ts';
import { RESET_PASSWORD } from './login-commands.ts';

const rowsOf = (user: User) =>
  [
    ['e-mail', user.email_confirmed ? user.email : `${user.email} (not confirmed)`],
    ['name', user.name || '-'],
    ['id', user.id],
    ['created', when(user.created_at)],
    ['second factor', user.mfa_enabled ? 'yes' : 'no: your password alone gives access'],
  ] as const;

function print({ terminal }: Call, user: User): undefined {
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

async function confirm(call: Call): Promise<undefined> {
  const token = mailTokenOf(call.args[0] ?? '');
  const user = await asUser(call, async (berth) => {
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

async function remove(call: Call): Promise<undefined> {
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
  await asUser(call, (berth) => berth.call('deleteMe', {}));
  session.forget(session.profile_name);
  terminal.done(`Deleted the account ${email}.`, { deleted: email });
}

export const ACCOUNT_COMMANDS: readonly Command[] = [
  {
    name: 'account show',
    password: 'unless_sudo',
    short: ['account'],
    summary: 'show your account',
    example: 'berth account show',
    options: PROOF,
    run: async (call) => print(call, await asUser(call, (berth) => berth.call('getMe', {}))),
  },
  {
    name: 'account rename',
    password: 'unless_sudo',
    args: ['NAME'],
    summary: 'change your name',
    example: "berth account rename 'Ada Lovelace'",
    options: PROOF,
    run: async (call) => {
      const body = { name: call.args[0] ?? '' };
      return print(call, await asUser(call, (berth) => berth.call('changeMe', { body })));
    },
  },
  {
    name: 'account email',
    password: 'always',
    args: ['ADDRESS'],
    fields: { email: 'ADDRESS' },
    summary: 'change your address; a mail to it has a link to confirm it',
    example: 'berth account email ada@example.org',
    options: PROOF,
    run: setEmail,
  },
  {
    name: 'account confirm',
    password: 'unless_sudo',
    args: ['LINK'],
    fields: { token: 'LINK' },
    summary: 'confirm your first or a new address, by the link or the token of the mail',
    example: 'berth account confirm https://berth.example.org/email#token=…',
    options: PROOF,
    run: confirm,
  },
  {
    name: 'account password',
    password: 'always',
    fields: { current_password: 'the current password', new_password: 'the new password' },
    summary: 'change your password; ends all sessions, and API keys continue',
    example: 'berth account password',
    options: {
      ...PROOF,
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
      ...PROOF,
    },
    run: remove,
  },
];
