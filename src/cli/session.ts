/**
 * Chooses the server and the credential of a command, and makes clients of the API (`Berth`).
 *
 * - Server: --url, else BERTH_URL, else that of the profile, else the one that wrote its address into a data folder on
 *   this machine, else that of the last login.
 * - Credential: BERTH_API_KEY, only for the server of BERTH_URL (if unset: the server on this machine); else the
 *   profile's API key.
 * - A call that needs a recent password gets a session. The user opens it with the password, or by a confirmation in a
 *   browser.
 */
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { Berth, BerthConnectionError, BerthError, type BerthOptions } from '../../client/src/berth.ts';
import type { Env } from '../config/env.ts';
import { askInBrowser } from './browser.ts';
import type { Call, Options } from './command.ts';
import { CommandError, EXIT } from './command-error.ts';
import { type LoggedOut, type Profile, readProfiles, writeProfiles } from './profiles.ts';
import { findFirstLogin } from './server-facts.ts';
import type { Terminal } from './terminal.ts';

const LOCAL_URL = 'http://127.0.0.1:7400';
export const USER_AGENT = `berth-cli (${process.platform})`;
const REACH_MS = 15_000;
/** A grant lasts five minutes; less the way here. */
const GRANT_MS = 290_000;

export interface ServerChoice {
  readonly profile?: string | undefined;
  readonly url?: string | undefined;
}

/** How a command proves who runs it. */
export interface PasswordProof {
  /** The password is the first line of stdin; else the terminal asks. */
  readonly password_stdin: boolean;
  /** A code of the authenticator, or a recovery code. Absent: the terminal asks if the account has a second factor. */
  readonly totp?: string | undefined;
}

const TOTP = /^\d{3} ?\d{3}$/;

function factorOf(code: string) {
  const text = code.trim();
  return TOTP.test(text) ? { totp_code: text.replace(' ', '') } : { recovery_code: text };
}

/** The grant of `berth sudo`, while it lasts. */
function grantOf({ sudo }: Profile): Profile['sudo'] {
  return sudo !== undefined && Date.parse(sudo.expires_at) > Date.now() ? sudo : undefined;
}

/** @throws CommandError */
function serverUrl(url: string): string {
  if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol)) {
    throw new CommandError(`${url} is not the address of a server: it begins with http:// or https://`, {
      exit_code: EXIT.usage,
    });
  }
  return url.replace(/\/+$/, '');
}

export class Session {
  readonly env: Env;
  readonly #terminal: Terminal;
  readonly #place: ServerChoice;
  readonly #fetch: Pick<BerthOptions, 'fetch'>;

  constructor(env: Env, place: ServerChoice, terminal: Terminal, fetch?: BerthOptions['fetch']) {
    this.env = env;
    this.#place = place;
    this.#terminal = terminal;
    this.#fetch = fetch === undefined ? {} : { fetch };
  }

  /** An empty variable counts as unset. */
  get #named(): string | undefined {
    return this.#place.profile ?? (this.env['BERTH_PROFILE'] || undefined);
  }

  get profile_name(): string {
    return this.#named ?? readProfiles(this.env).current ?? 'default';
  }

  get profile(): Profile | undefined {
    return readProfiles(this.env).profiles[this.profile_name];
  }

  /** The last login of this profile, if it has ended by `berth logout`. */
  get logged_out(): LoggedOut | undefined {
    return readProfiles(this.env).logged_out?.[this.profile_name];
  }

  /** Without a trailing slash. */
  get url(): string {
    const last = this.profile ?? this.logged_out;
    const given = this.#place.url ?? (this.env['BERTH_URL'] || undefined) ?? last?.url;
    // Before the first login, use the address that the local server wrote down. A new profile is mostly for the same server.
    return serverUrl(given ?? findFirstLogin(this.env)?.url ?? this.#currentUrl ?? LOCAL_URL);
  }

  get #currentUrl(): string | undefined {
    const { current, profiles } = readProfiles(this.env);
    return profiles[current ?? 'default']?.url;
  }

  /** At the server of a mail's link, unless --url names another. */
  at(url: string): Session {
    return new Session(this.env, { ...this.#place, url: this.#place.url ?? url }, this.#terminal);
  }

  /** The same session, which refuses every call but GET. */
  forReading(): Session {
    return new Session(this.env, this.#place, this.#terminal, async (input, init = {}) => {
      if (init.method !== 'GET') throw new Error('this session may only read');
      return fetch(input, init);
    });
  }

  /** With the grant of `berth sudo`, if it lasts. */
  granted(): Berth | undefined {
    const { profile } = this;
    const sudo = profile && grantOf(profile);
    if (profile === undefined || sudo === undefined || profile.url !== this.url) return undefined;
    return this.#granted(profile, sudo.session_token);
  }

  /** Without a credential. */
  stranger(): Berth {
    return new Berth({ url: this.url, user_agent: USER_AGENT });
  }

  /** With a session that was just opened. */
  opened({ session_token }: { readonly session_token: string }): Berth {
    return new Berth({ url: this.url, token: session_token, user_agent: USER_AGENT });
  }

  /** With the user's key. @throws CommandError without a login */
  berth(options: Pick<BerthOptions, 'fetch'> = {}): Berth {
    const { url, profile } = this;
    const token = this.env['BERTH_API_KEY'];
    if (token !== undefined && token !== '') {
      this.#requireServerOfKey();
      return new Berth({ ...options, ...this.#fetch, url, token, user_agent: USER_AGENT });
    }
    if (profile === undefined) throw this.noLogin();
    this.requireServerOf(profile);
    return new Berth({ ...options, ...this.#fetch, url, token: profile.api_key, user_agent: USER_AGENT });
  }

  /** Credentials go only to their own server. @throws CommandError */
  requireServerOf(profile: Profile): void {
    const { url } = this;
    if (profile.url === url) return;
    throw new CommandError(`the login “${this.profile_name}” is for ${profile.url}, not for ${url}`, {
      next: `berth login --url ${url} --profile NAME`,
      exit_code: EXIT.not_authorised,
    });
  }

  /** BERTH_API_KEY belongs to BERTH_URL; without that, to the server of this machine. @throws CommandError */
  #requireServerOfKey(): void {
    const { url, env } = this;
    const given = env['BERTH_URL'] || undefined;
    const own = serverUrl(given ?? findFirstLogin(env)?.url ?? LOCAL_URL);
    if (new URL(own).href === new URL(url).href) return;
    const why = given === undefined ? ', because BERTH_URL is not set' : '';
    throw new CommandError(`BERTH_API_KEY is for ${own}${why}; it is not sent to ${url}`, {
      next: `BERTH_URL=${url} if the key is of that server; else unset BERTH_API_KEY`,
      exit_code: EXIT.not_authorised,
    });
  }

  noLogin(): CommandError {
    const { profiles } = readProfiles(this.env);
    const named = this.#named;
    const others = Object.keys(profiles).sort().join(', ');
    const found =
      named !== undefined && others !== ''
        ? `there is no login “${named}”; there is ${others}`
        : `you are not logged in at ${this.url}`;
    return new CommandError(found, {
      next: named === undefined ? 'berth login' : `berth login --profile ${named}`,
      exit_code: EXIT.not_authorised,
    });
  }

  /** Makes the profile the default. */
  keepAsCurrent(name: string, profile: Profile): void {
    this.#write(name, profile, name);
  }

  /** Saves the profile. The default profile stays. */
  keep(name: string, profile: Profile): void {
    this.#write(name, profile, readProfiles(this.env).current);
  }

  #write(name: string, profile: Profile, current: string | null): void {
    const { profiles, logged_out = {} } = readProfiles(this.env);
    const { [name]: _ended, ...others } = logged_out;
    writeProfiles(this.env, { current, profiles: { ...profiles, [name]: profile }, logged_out: others });
  }

  /** Forgets the credentials of a login. The next `berth login` goes to the same server. */
  forget(name: string): void {
    const { current, profiles, logged_out = {} } = readProfiles(this.env);
    const { [name]: gone, ...rest } = profiles;
    const left =
      gone === undefined ? {} : { [name]: { url: gone.url, email: gone.email, org_id: gone.org_id } };
    writeProfiles(this.env, {
      current: current === name ? (Object.keys(rest)[0] ?? name) : current,
      profiles: rest,
      logged_out: { ...logged_out, ...left },
    });
  }

  /** Checks the connection before asking for a password. @throws BerthConnectionError */
  async mustAnswer(): Promise<void> {
    const { url } = this;
    const signal = AbortSignal.timeout(REACH_MS);
    await fetch(`${url}/healthz`, { signal, redirect: 'manual' }).catch((error: Error) => {
      const { cause } = error as { cause?: Error };
      throw new BerthConnectionError(`${url} does not answer: ${cause?.message || error.message}`);
    });
  }

  /** Opens a session with a password and, if the account has one, a second factor. */
  async open(email: string, password: string, code?: string | undefined) {
    const options = { url: this.url, user_agent: USER_AGENT };
    const given = code === undefined ? {} : factorOf(code);
    try {
      return await Berth.login(options, { email, password, ...given });
    } catch (error) {
      const asks = error instanceof BerthError && error.code === 'MFA_REQUIRED' && code === undefined;
      if (!asks || !this.#terminal.interactive) throw error;
      const answer = await this.#terminal.ask('Code of your authenticator, or a recovery code', null);
      return Berth.login(options, { email, password, ...factorOf(answer) });
    }
  }

  /** The same, for a password that was asked for. */
  async openAsked(email: string, password: string, code?: string | undefined) {
    try {
      return await this.open(email, password, code);
    } catch (error) {
      if (!(error instanceof BerthError) || error.code !== 'UNAUTHENTICATED') throw error;
      const next = 'the same again; if it is forgotten: berth account reset-password';
      throw new CommandError(error.message, { next, exit_code: EXIT.not_authorised });
    }
  }

  /** Opens a session that the user confirms in a browser. */
  async openInBrowser({ sudo } = { sudo: false }) {
    const asking = this.stranger();
    const session = await askInBrowser(asking, this.env, this.#terminal, sudo);
    const berth = this.opened(session);
    return { berth, session, sudo_cookie: asking.sudo_cookie ?? '' };
  }

  /** The login of the user who runs the command. @throws CommandError without one: a key alone opens no session */
  requireProfile(): Profile {
    const { profile } = this;
    if (profile === undefined && !this.env['BERTH_API_KEY']) throw this.noLogin();
    if (profile === undefined) {
      throw new CommandError('this needs your password, and so a login', {
        next: 'berth login',
        exit_code: EXIT.not_authorised,
      });
    }
    this.requireServerOf(profile);
    return profile;
  }

  async password(profile: Profile, { password_stdin }: PasswordProof): Promise<string> {
    if (password_stdin) return (await this.#terminal.stdin()).split('\n')[0] ?? '';
    // Only calls that take the password themselves come here then.
    const again = grantOf(profile) === undefined ? '' : ' (this needs it also after berth sudo)';
    return this.#terminal.askSecret(`Password of ${profile.email}${again}`);
  }

  #granted({ org_id }: Profile, session_token: string): Berth {
    const token = session_token;
    return new Berth({ ...this.#fetch, url: this.url, token, org: org_id, user_agent: USER_AGENT });
  }

  /**
   * Runs calls that need the user in person: with the grant of `berth sudo` while it lasts, else asks for the password and
   * opens a session until `work` is done.
   */
  async withSudo<T>(proof: PasswordProof, work: (berth: Berth) => Promise<T>): Promise<T> {
    const profile = this.requireProfile();
    const sudo = grantOf(profile);
    if (sudo !== undefined) {
      const berth = this.#granted(profile, sudo.session_token);
      berth.useSudo(sudo.cookie);
      // Somebody may have ended that session: then the password is asked for.
      const holds = await berth.call('getMe', {}).then(
        () => true,
        (error: unknown) => {
          if (error instanceof BerthError && error.status === 401) return false;
          throw error;
        },
      );
      if (holds) return work(berth);
      const { sudo: _ended, ...rest } = profile;
      this.keep(this.profile_name, rest);
    }
    if (!profile.in_browser || proof.password_stdin) return this.withPassword(proof, work);
    // Kept, as by `berth sudo`: a browser for each command would be too much.
    const granted = await this.grantInBrowser(profile);
    this.keep(this.profile_name, { ...profile, sudo: granted.sudo });
    return work(granted.berth);
  }

  /** The same, and always asks: for calls that take the password themselves. */
  async withPassword<T>(
    proof: PasswordProof,
    work: (berth: Berth, password: string) => Promise<T>,
  ): Promise<T> {
    const profile = this.requireProfile();
    const password = await this.password(profile, proof);
    const { berth } = await this.grant(profile, password, proof);
    try {
      return await work(berth, password);
    } finally {
      await berth.call('logout', {}).catch(() => undefined);
    }
  }

  /** A new session with a sudo grant. */
  async grant(profile: Profile, password: string, { totp }: PasswordProof) {
    const { session } = await this.openAsked(profile.email, password, totp);
    const berth = this.#granted(profile, session.session_token);
    try {
      const { expires_at, cookie } = await berth.sudo(password);
      return { berth, sudo: { session_token: session.session_token, cookie, expires_at } };
    } catch (error) {
      await berth.call('logout', {}).catch(() => undefined);
      throw error;
    }
  }

  /** The same, confirmed in a browser by the user of the profile. @throws CommandError if somebody else did */
  async grantInBrowser(profile: Profile) {
    const { berth: own, session, sudo_cookie: cookie } = await this.openInBrowser({ sudo: true });
    const { session_token, user } = session;
    const berth = this.#granted(profile, session_token);
    berth.useSudo(cookie);
    if (user.id !== profile.user_id) {
      await own.call('logout', {}).catch(() => undefined);
      throw new CommandError(
        `${user.email} confirmed this in the browser, but the login “${this.profile_name}” is ${profile.email}’s`,
        {
          next: 'the same again, and in the browser the other account',
          exit_code: EXIT.not_authorised,
        },
      );
    }
    const expires_at = new Date(Date.now() + GRANT_MS).toISOString();
    return { berth, sudo: { session_token, cookie, expires_at } };
  }
}

export function proofOf(options: Options): PasswordProof {
  return { password_stdin: options.flag('password-stdin'), totp: options.text('totp') };
}

/** Runs calls in a session of the user, with a sudo grant. @throws CommandError without a login */
export function inSession<T>(
  { session, options }: Pick<Call, 'session' | 'options'>,
  work: (berth: Berth, profile: Profile) => Promise<T>,
): Promise<T> {
  const profile = session.requireProfile();
  return session.withSudo(proofOf(options), (berth) => work(berth, profile));
}

/** The name of the instance that a fork was made of; its id once it is deleted. */
export async function parentName(berth: Berth, id: string): Promise<string> {
  try {
    return (await berth.instances.get(id)).name;
  } catch (error) {
    if (error instanceof BerthError && error.code === 'NOT_FOUND') return id;
    throw error;
  }
}

/** The version in package.json. */
export function version(): string {
  const path = join(import.meta.dirname, '..', '..', 'package.json');
  return (JSON.parse(readFileSync(path, 'utf8')) as { version: string }).version;
}
