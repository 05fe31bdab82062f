/** `berth account reset-password`: a forgotten password, by a mail and the link in it. Needs no login. */
import type { Call, Command } from '../command.ts';
import { CommandError } from '../command-error.ts';
import { mailTokenOf, serverOfLink } from '../mail-token.ts';
import { newPassword } from '../new-password.ts';
import { readSettings } from '../settings.ts';

async function ask({ session, options, terminal }: Call): Promise<undefined> {
  const { url } = session;
  await session.mustAnswer();
  const last = session.profile ?? session.logged_out;
  const email =
    options.text('email') ??
    (last?.url === url ? last.email : undefined) ??
    (await terminal.ask(`E-mail address of your account at ${url}`, null, '--email ADDRESS'));
  if ((await readSettings(url)).mail === 'files') {
    throw new CommandError(`${url} sends no mail, and so no link`, {
      next: `its operator runs, on the server: berth user reset-password ${email}`,
    });
  }
  await session.stranger().call('requestPasswordReset', { body: { email } });
  const told = `If ${email} has an account, a mail with a link goes there. It works once, for an hour.`;
  terminal.done(`${told}\nThen: berth account reset-password LINK`, { email });
}

async function set(call: Call, link: string): Promise<undefined> {
  const token = mailTokenOf(link);
  const server = serverOfLink(link);
  const session = server === undefined ? call.session : call.session.at(server);
  await session.mustAnswer();
  const new_password = await newPassword(call, 'New password');
  const revoke_all = call.options.flag('revoke-all');
  const body = { token, new_password, ...(revoke_all ? { revoke_all } : {}) };
  await session.stranger().call('confirmPasswordReset', { body });
  const rest = revoke_all
    ? 'All sessions have ended, and all API keys, SSH keys and second factors are removed.'
    : 'All sessions have ended. API keys, and so the logins of command lines, continue.';
  call.terminal.done(`The password is changed. ${rest}\nLog in: berth login`, {});
}

export const RESET_PASSWORD: Command = {
  name: 'account reset-password',
  args: ['[LINK]'],
  fields: { token: 'LINK', new_password: 'the new password' },
  summary: 'set a new password for a forgotten one: get a mail, then give its link',
  details: 'Without LINK, a mail with a link goes to the address of the account. Needs no login.',
  example: 'berth account reset-password --email ada@example.org',
  options: {
    email: {
      type: 'string',
      value: 'ADDRESS',
      help: 'where to send the mail; default: that of the last login',
    },
    'revoke-all': {
      field: 'revoke_all',
      type: 'boolean',
      help: 'with LINK: remove every API key, SSH key and second factor too',
    },
    'password-stdin': { type: 'boolean', help: 'with LINK: the new password is the first line of stdin' },
  },
  run: (call) => {
    const [link] = call.args;
    return link === undefined ? ask(call) : set(call, link);
  },
};
