/**
 * The commands `login`, `logout`, `whoami`, `sudo` and `register`, and the reset of a forgotten password. A login or
 * registration creates an API key for this machine, and keeps it in a file that only the user can read (`profiles.ts`).
 */
import { hostname } from 'node:os';
import { type Answer, Berth, BerthError, type Org } from '../../../client/src/berth.ts';
import { scopeOfRole } from '../../../client/src/words.ts';
import { type Call, type Command, type Option, PROOF } from '../command.ts';
import { CommandError, EXIT, UsageError } from '../command-error.ts';
import { type Profile, readProfiles } from '../profiles.ts';
import {
  type FoundLogin,
  findFirstLogin,
  forgetFirstLogin,
  isLocal,
  readSettings,
  UNKNOWN_SETTINGS,
} from '../server-facts.ts';
import { proofOf, USER_AGENT } from '../session.ts';
import { clock } from '../table.ts';
import { mailTokenOf, newPassword, serverOfLink } from '../terminal.ts';

/** The present key is replaced also when its server is gone. */
const REVOKE_MS = 5_000;

/** A server that sends mails gives no API key to an address that is not confirmed. */
const CONFIRM: Readonly<Record<'confirm', Option>> = {
  confirm: {
    type: 'string',
    value: 'LINK',
    field: 'token',
    help: 'the link of the mail that confirms the address of a new account',
  },
};

export interface Opened {
  readonly berth: Berth;
  readonly session: Answer<'login'>;
  /** Confirmed in a browser, without a password. */
  readonly in_browser?: true;
}

interface Ending {
  /** `You are logged in`. */
  readonly lead: string;
  /** Lines to print after it. */
  readonly notes: readonly string[];
  /** The command goes on to register an SSH key. */
  readonly key_follows: boolean;
  /** The organisation to act in, of all, the newest membership first. */
  readonly choose: (orgs: readonly Org[]) => Org | undefined;
}

/** Ends the session in any case. @throws CommandError when no organisation fits */
async function keepLogin(call: Call, { berth, session: opened, in_browser }: Opened, ending: Ending) {
  const { session, terminal, options } = call;
  const { url, profile_name, profile: before } = session;
  const { id: user_id, email } = opened.user;
  try {
    if (!opened.user.email_confirmed) await confirmAddress(call, berth, email);
    const orgs = (await berth.call('listOrgs', { query: { limit: 200 } })).data;
    const org = ending.choose(orgs);
    if (!org) {
      const text = `${email} belongs to no organisation ${options.text('org') ?? ''}`.trim();
      throw new CommandError(text, { exit_code: EXIT.not_found });
    }
    const acting = new Berth({ url, token: opened.session_token, org: org.id, user_agent: USER_AGENT });
    const { role } = await acting.call('getMember', { path: { id: org.id, user_id } });
    const name = `cli on ${hostname()}`.slice(0, 100);
    const { id: api_key_id, key: api_key } = await acting.createApiKey({ name, scope: scopeOfRole(role) });
    const way = in_browser ? { in_browser } : {};
    session.keepAsCurrent(profile_name, { url, email, user_id, org_id: org.id, api_key_id, api_key, ...way });
    if (before !== undefined) await endBefore(before, acting);
    const keys = await acting.call('listSshKeys', { query: { limit: 1 } });
    const is_one_of_several = Object.keys(readProfiles(session.env).profiles).length > 1;
    const lines = [
      `${ending.lead} at ${url} as ${email}, in ${org.name}.${is_one_of_several ? ` This is now the login that commands use (--profile ${profile_name}).` : ''}`,
      ...ending.notes,
      ...(keys.data.length === 0 && !ending.key_follows ? ['Register your SSH key: berth ssh-key add'] : []),
      ...othersOf(orgs.filter(({ id }) => id !== org.id)),
    ];
    terminal.done(lines.join('\n'), { url, email, org_id: org.id, profile: profile_name });
    return undefined;
  } finally {
    await berth.call('logout', {}).catch(() => undefined);
  }
}

async function confirmAddress({ options, terminal }: Call, berth: Berth, email: string): Promise<void> {
  const told = options.text('confirm');
  if (told === undefined && !terminal.interactive) {
    throw new CommandError(`a mail to ${email} has a link: the account can be used once that confirms it`, {
      next: `berth login --url ${berth.url} --email ${email} --confirm LINK`,
      again: '--confirm LINK',
      exit_code: EXIT.usage,
    });
  }
  const question = `A mail to ${email} has a link that confirms the address. The link`;
  const token = mailTokenOf(told ?? (await terminal.ask(question, null)));
  await berth.call('confirmEmail', { body: { token } });
}

/** The user's other organisations: a login acts in one. */
function othersOf(others: readonly Org[]): readonly string[] {
  if (others.length === 0) return [];
  const names = others.map(({ name }) => name).join(', ');
  return [`You also belong to ${names}. To work there: berth login --org ORG --profile NAME`];
}

/** Revokes the old key before its only record is overwritten. */
async function endBefore({ url, api_key, api_key_id }: Profile, acting: Berth): Promise<void> {
  if (acting.url === url && (await revoke(acting, api_key_id))) return;
  const signal = AbortSignal.timeout(REVOKE_MS);
  await revoke(new Berth({ url, token: api_key, user_agent: USER_AGENT, retries: 0 }), api_key_id, signal);
}

/** A key that is revoked already is no failure. */
export async function revoke(berth: Berth, id: string, signal?: AbortSignal): Promise<boolean> {
  return berth.call('revokeApiKey', { path: { id } }, { signal }).then(
    () => true,
    () => false,
  );
}

export async function login(call: Call): Promise<undefined> {
  const { session, options } = call;
  const last = session.profile ?? session.logged_out;
  const { first, ...opened } = await openLogin(call);
  const { email } = opened.session.user;
  const wanted = options.text('org');
  // The organisation of the last login; else the oldest membership, the last of the list.
  const is_same = last?.url === session.url && last.email === email;
  return keepLogin(call, opened, {
    lead: 'You are logged in',
    notes:
      first === undefined
        ? []
        : [`The first password is in ${first.path}; once you have it elsewhere, delete that file.`],
    // `berth up` registers a key itself.
    key_follows: call.args.length > 0,
    choose: (orgs) =>
      wanted === undefined
        ? (orgs.find(({ id }) => is_same && id === last.org_id) ?? orgs.at(-1))
        : orgs.find(({ id, name }) => id === wanted || name === wanted),
  });
}

interface OpenedFirst extends Opened {
  /** The generated password that was used. */
  readonly first: FoundLogin | undefined;
}

/** In a browser on request, or where there are no passwords. */
async function openLogin(call: Call): Promise<OpenedFirst> {
  const { session, options } = call;
  const asks_browser = options.flag('browser');
  if (asks_browser && options.flag('password-stdin')) {
    throw new UsageError('--browser and --password-stdin exclude each other');
  }
  const { password_login, oidc } = asks_browser ? UNKNOWN_SETTINGS : await readSettings(session.url);
  if (asks_browser || (password_login === 'off' && !options.flag('password-stdin'))) {
    const { berth, session: opened } = await session.openInBrowser();
    return { berth, session: opened, in_browser: true, first: undefined };
  }
  return openByPassword(call, oidc?.name);
}

async function emailOf({ session, terminal, options }: Call): Promise<string> {
  const { url } = session;
  const last = session.profile ?? session.logged_out;
  return (
    options.text('email') ??
    (last?.url === url ? last.email : undefined) ??
    // On the server's machine, offer the first administrator's address.
    (isLocal(url) ? (session.env['BERTH_ADMIN_EMAIL'] ?? 'admin@localhost') : undefined) ??
    (await terminal.ask(`E-mail address at ${url}`, null, '--email ADDRESS'))
  );
}

/** With the generated password on this machine while it works; else asks. @param provider of OpenID */
async function openByPassword(call: Call, provider: string | undefined): Promise<OpenedFirst> {
  const { session, terminal, options } = call;
  const { url } = session;
  const email = await emailOf(call);
  const totp = options.text('totp');
  const from_stdin = options.flag('password-stdin');
  const found = isLocal(url) && !from_stdin ? findFirstLogin(session.env, url) : undefined;
  if (found?.email === email) {
    try {
      return { ...(await session.open(email, found.password, totp)), first: found };
    } catch (error) {
      if (!(error instanceof BerthError) || error.code !== 'UNAUTHENTICATED') throw error;
      forgetFirstLogin(found);
    }
  }
  if (!from_stdin) await session.mustAnswer();
  const password = from_stdin
    ? ((await terminal.stdin()).split('\n')[0] ?? '')
    : await terminal.askSecret(
        `Password of ${email} at ${url} (another account: --email${provider === undefined ? '' : `; by ${provider}: --browser`})`,
      );
  return { ...(await session.openAsked(email, password, totp)), first: undefined };
}

async function logout({ session, terminal }: Call): Promise<undefined> {
  const { profile, profile_name } = session;
  if (profile === undefined) throw session.noLogin();
  const { url, api_key, api_key_id, sudo } = profile;
  if (sudo) await endGrant(url, sudo.session_token);
  const revoked = await revoke(
    new Berth({ url, token: api_key, user_agent: USER_AGENT, retries: 1 }),
    api_key_id,
  );
  session.forget(profile_name);
  if (!revoked)
    terminal.warn(`berth: the key could not be revoked at ${url}; check it with berth api-key ls`);
  terminal.done(`You are logged out of ${url}.`, { url, profile: profile_name });
}

function endGrant(url: string, token: string): Promise<unknown> {
  return new Berth({ url, token, user_agent: USER_AGENT, retries: 0 })
    .call('logout', {})
    .catch(() => undefined);
}

async function whoami({ session, terminal }: Call): Promise<undefined> {
  const berth = session.berth();
  const { profile, profile_name } = session;
  if (profile === undefined || session.env['BERTH_API_KEY']) {
    await berth.call('listImages', {});
    return void terminal.done(`A key from BERTH_API_KEY, at ${berth.url}.`, { url: berth.url });
  }
  const [org, key] = await Promise.all([
    berth.call('getOrg', { path: { id: profile.org_id } }),
    berth.call('getApiKey', { path: { id: profile.api_key_id } }),
  ]);
  const found = { email: profile.email, org, key, url: berth.url, profile: profile_name };
  terminal.one(found, {
    rows: () => [
      ['e-mail', found.email],
      ['organisation', `${org.name} (${org.id})`],
      ['server', found.url],
      ['profile', profile_name],
      ['key', `${key.name} (${key.id})`],
      ['permissions', key.scope === '*' ? 'all' : key.scope],
    ],
    quiet: () => found.email,
  });
}

async function sudo({ session, terminal, options }: Call): Promise<undefined> {
  const { profile, profile_name } = session;
  if (profile === undefined) {
    throw new CommandError('sudo needs a login', { next: 'berth login', exit_code: EXIT.not_authorised });
  }
  session.requireServerOf(profile);
  if (profile.sudo) await endGrant(profile.url, profile.sudo.session_token);
  const { sudo: _old, ...rest } = profile;
  if (options.flag('end')) {
    session.keep(profile_name, rest);
    return void terminal.done('From now on you are asked again.', {});
  }
  const proof = proofOf(options);
  const { sudo: grant } =
    rest.in_browser && !proof.password_stdin
      ? await session.grantInBrowser(rest)
      : await session.grant(rest, await session.password(rest, proof), proof);
  session.keep(profile_name, { ...rest, sudo: grant });
  terminal.done(`Commands do not ask you again until ${clock(grant.expires_at)}.`, {
    expires_at: grant.expires_at,
  });
}

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

const REGISTER: Command = {
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

async function askForReset({ session, options, terminal }: Call): Promise<undefined> {
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

async function setNewPassword(call: Call, link: string): Promise<undefined> {
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
    return link === undefined ? askForReset(call) : setNewPassword(call, link);
  },
};

export const LOGIN_COMMANDS: readonly Command[] = [
  REGISTER,
  {
    name: 'login',
    summary: 'log in from this machine',
    example: 'berth login --url https://berth.example.org --profile work',
    options: {
      email: {
        type: 'string',
        value: 'ADDRESS',
        help: "default: the last one; on the server's own machine, the administrator's",
      },
      org: {
        type: 'string',
        value: 'ORG',
        help: 'the organisation, by name or id; default: that of the last login, else the first',
      },
      browser: {
        type: 'boolean',
        help: 'confirm the login in a browser, on this or another machine: for accounts without a password',
      },
      ...CONFIRM,
      ...PROOF,
    },
    run: login,
  },
  {
    name: 'logout',
    summary: 'log out: revoke the API key of this machine, and delete it here',
    example: 'berth logout',
    run: logout,
  },
  {
    name: 'whoami',
    summary: 'show the current user, organisation and server',
    example: 'berth whoami',
    run: whoami,
  },
  {
    name: 'sudo',
    summary: 'prove once who you are, for all commands of the next five minutes',
    example: 'berth sudo && berth api-key rotate ci',
    options: {
      end: { type: 'boolean', help: 'end it now, before the five minutes are over' },
      ...PROOF,
    },
    run: sudo,
  },
];
