/** Saves an API key of this machine for a session that was just opened: how `login` and `register` end. */
import { hostname } from 'node:os';
import { type Answer, Berth, type Org } from '../../client/src/berth.ts';
import { scopeOfRole } from '../../client/src/words.ts';
import type { Call, Option } from './command.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';
import { type Profile, readProfiles } from './profiles.ts';
import { USER_AGENT } from './session.ts';
import { mailTokenOf } from './terminal.ts';

/** The present key is replaced also when its server is gone. */
const REVOKE_MS = 5_000;

/** A server that sends mails gives no API key to an address that is not confirmed. */
export const CONFIRM: Readonly<Record<'confirm', Option>> = {
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
export async function keepLogin(call: Call, { berth, session: opened, in_browser }: Opened, ending: Ending) {
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
