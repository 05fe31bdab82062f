/** `berth register`: creates an account, with an invitation or where sign-ups are open, and logs in. */
import type { Call, Command } from '../command.ts';
import { CommandError } from '../command-error.ts';
import { EXIT } from '../exit-codes.ts';
import { keepLogin } from '../keep-login.ts';
import { mailTokenOf, serverOfLink } from '../mail-token.ts';
import { newPassword } from '../new-password.ts';
import { readSettings } from '../settings.ts';

async function register(call: Call): Promise<undefined> {
  const [link] = call.args;
  const invitation_token = link === undefined ? undefined : mailTokenOf(link);
  const server = link === undefined ? undefined : serverOfLink(link);
  const session = server === undefined ? call.session : call.session.at(server);
  const { url, profile, profile_name } = session;
  const { options, terminal } = call;
  if (profile !== undefined) {
    const join = link === undefined ? '' : 'berth invitation accept LINK, to join with that account; or ';
    const text = `the login “${profile_name}” exists: ${profile.email} at ${profile.url}`;
    const next = `${join}--profile NAME, for another account`;
    throw new CommandError(text, { next, exit_code: EXIT.state });
  }
  await session.mustAnswer();
  if (invitation_token === undefined && (await readSettings(url)).signups === 'closed') {
    throw new CommandError(`sign-ups are closed at ${url}: a new account needs an invitation`, {
      next: 'ask a member for one, then berth register LINK',
      exit_code: EXIT.not_authorised,
    });
  }
  const email =
    options.text('email') ?? (await terminal.ask(`Your e-mail address at ${url}`, null, '--email ADDRESS'));
  const password = await newPassword(call, 'Password');
  const berth = session.stranger();
  const name = options.text('name');
  const opened = await berth.call('register', { body: { email, password, name, invitation_token } });
  return keepLogin(
    { ...call, session },
    { berth: session.opened(opened), session: opened },
    {
      lead: 'Created the account. You are logged in',
      notes: [],
      key_follows: false,
      // That of an invitation existed before the account and its own one.
      choose: (orgs) => orgs.toSorted((a, b) => a.created_at.localeCompare(b.created_at))[0],
    },
  );
}

export const REGISTER: Command = {
  name: 'register',
  args: ['[LINK]'],
  fields: { invitation_token: 'LINK', password: 'the password' },
  summary: 'create an account with an invitation, or where sign-ups are open, and log in',
  details:
    'LINK is the link, or the token, of an invitation; its server is used, unless --url names another. With an account already: berth invitation accept.',
  example: 'berth register https://berth.example.org/invitation#token=…',
  options: {
    email: {
      type: 'string',
      value: 'ADDRESS',
      help: 'your e-mail address; of an invitation, the one that was invited',
    },
    name: { type: 'string', value: 'NAME', help: 'your name, which other members see' },
    'password-stdin': { type: 'boolean', help: 'the new password is the first line of stdin' },
  },
  run: register,
};
