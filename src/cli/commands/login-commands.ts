/** login, logout, whoami, sudo. A login saves an API key for this machine in a private file. */
import { Berth, BerthError } from '../../../client/src/berth.ts';
import { proofOf } from '../as-user.ts';
import { type Call, type Command, PROOF } from '../command.ts';
import { CommandError } from '../command-error.ts';
import { EXIT } from '../exit-codes.ts';
import { findFirstLogin, forgetFirstLogin, isLocal } from '../first-login.ts';
import { clock } from '../format.ts';
import { CONFIRM, keepLogin, revoke } from '../keep-login.ts';
import { USER_AGENT } from '../session.ts';

export async function login(call: Call): Promise<undefined> {
  const { session, terminal, options } = call;
  const { url } = session;
  const last = session.profile ?? session.logged_out;
  // On the server's machine, offer the first administrator's address.
  const local = isLocal(url);
  const email =
    options.text('email') ??
    (last?.url === url ? last.email : undefined) ??
    (local ? (session.env['BERTH_ADMIN_EMAIL'] ?? 'admin@localhost') : undefined) ??
    (await terminal.ask(`E-mail address at ${url}`, null, '--email ADDRESS'));
  const { first, ...opened } = await openLogin(call, email, local);
  const wanted = options.text('org');
  // The organisation of the last login; else the oldest membership, the last of the list.
  const is_same = last?.url === url && last.email === email;
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

/** With the generated password on this machine while it works; else asks. */
async function openLogin({ session, terminal, options }: Call, email: string, local: boolean) {
  const { url } = session;
  const totp = options.text('totp');
  const from_stdin = options.flag('password-stdin');
  const found = local && !from_stdin ? findFirstLogin(session.env, url) : undefined;
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
    : await terminal.askSecret(`Password of ${email} at ${url} (another account: --email)`);
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
    return void terminal.done('From now on your password is asked for again.', {});
  }
  const proof = proofOf(options);
  const { sudo: grant } = await session.grant(rest, await session.password(rest, proof), proof);
  session.keep(profile_name, { ...rest, sudo: grant });
  terminal.done(`Commands do not ask for your password until ${clock(grant.expires_at)}.`, {
    expires_at: grant.expires_at,
  });
}

export const LOGIN_COMMANDS: readonly Command[] = [
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
    summary: 'enter your password once, for all commands of the next five minutes',
    example: 'berth sudo && berth api-key rotate ci',
    options: {
      end: { type: 'boolean', help: 'end it now, before the five minutes are over' },
      ...PROOF,
    },
    run: sudo,
  },
];
