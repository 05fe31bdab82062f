/**
 * The server and credential of a command. Server: --url, BERTH_URL, the profile's, else this machine's. Credential:
 * BERTH_API_KEY, else the profile's key. A call that needs a recent password opens a session with the password.
 */
import { Berth, BerthConnectionError, BerthError, type BerthOptions } from '../../client/src/berth.ts';
import type { Env } from '../config/env.ts';
import { CommandError } from './command-error.ts';
import { EXIT } from './exit-codes.ts';
import { findFirstLogin } from './first-login.ts';
import { type Profile, readProfiles, writeProfiles } from './profiles.ts';
import type { Terminal } from './terminal.ts';

export const LOCAL_URL = 'http://127.0.0.1:7400';
export const USER_AGENT = 'berth-cli';
const REACH_MS = 15_000;

export interface Place {
  readonly profile?: string | undefined;
  readonly url?: string | undefined;
}

export class Session {
  readonly env: Env;
  readonly #terminal: Terminal;
  readonly #place: Place;

  constructor(env: Env, place: Place, terminal: Terminal) {
    this.env = env;
    this.#place = place;
    this.#terminal = terminal;
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

  /** Without a trailing slash. */
  get url(): string {
    const given = this.#place.url ?? (this.env['BERTH_URL'] || undefined) ?? this.profile?.url;
    // Before the first login, use the address that the local server wrote down.
    const url = given ?? findFirstLogin(this.env)?.url ?? LOCAL_URL;
    if (!URL.canParse(url) || !/^https?:$/.test(new URL(url).protocol)) {
      throw new CommandError(`${url} is not the address of a server`, { exit_code: EXIT.usage });
    }
    return url.replace(/\/+$/, '');
  }

  /** Without a credential. */
  stranger(): Berth {
    return new Berth({ url: this.url, user_agent: USER_AGENT });
  }

  /** With the user's key. @throws CommandError without a login */
  berth(options: Pick<BerthOptions, 'fetch'> = {}): Berth {
    const { url, profile } = this;
    const token = this.env['BERTH_API_KEY'];
    if (token !== undefined && token !== '') {
      return new Berth({ ...options, url, token, user_agent: USER_AGENT });
    }
    if (profile === undefined) throw this.noLogin();
    this.requireServerOf(profile);
    return new Berth({ ...options, url, token: profile.api_key, user_agent: USER_AGENT });
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
    const { profiles } = readProfiles(this.env);
    writeProfiles(this.env, { current, profiles: { ...profiles, [name]: profile } });
  }

  forget(name: string): void {
    const { current, profiles } = readProfiles(this.env);
    const { [name]: _gone, ...rest } = profiles;
    writeProfiles(this.env, {
      current: current === name ? (Object.keys(rest)[0] ?? null) : current,
      profiles: rest,
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
  async open(email: string, password: string, totp_code?: string | undefined) {
    const options = { url: this.url, user_agent: USER_AGENT };
    const given = totp_code === undefined ? {} : { totp_code };
    try {
      return await Berth.login(options, { email, password, ...given });
    } catch (error) {
      const asks = error instanceof BerthError && error.code === 'MFA_REQUIRED' && totp_code === undefined;
      if (!asks || !this.#terminal.interactive) throw error;
      const code = await this.#terminal.ask('Code of your authenticator', null);
      return Berth.login(options, { email, password, totp_code: code.replaceAll(' ', '') });
    }
  }

  /** The same, and asks for the password. */
  async openAsked(email: string, password: string, totp_code?: string | undefined) {
    try {
      return await this.open(email, password, totp_code);
    } catch (error) {
      if (!(error instanceof BerthError) || error.code !== 'UNAUTHENTICATED') throw error;
      const next = `the same again; if it is forgotten, on the server: berth user reset-password ${email}`;
      throw new CommandError(error.message, { next, exit_code: EXIT.not_authorised });
    }
  }

  /**
   * Runs a call that needs a recent password: with the grant of `berth sudo` while it lasts, else asks for the password.
   */
  async withSudo<T>(
    options: { readonly password_stdin: boolean },
    work: (berth: Berth) => Promise<T>,
  ): Promise<T> {
    const { profile } = this;
    if (profile === undefined) {
      throw new CommandError('this needs your password, and so a login', {
        next: 'berth login',
        exit_code: EXIT.not_authorised,
      });
    }
    this.requireServerOf(profile);
    const { sudo } = profile;
    if (sudo !== undefined && Date.parse(sudo.expires_at) > Date.now()) {
      const berth = new Berth({
        url: this.url,
        token: sudo.session_token,
        org: profile.org_id,
        user_agent: USER_AGENT,
      });
      berth.useSudo(sudo.cookie);
      return work(berth);
    }
    const granted = await this.grant(profile, options);
    try {
      return await work(granted.berth);
    } finally {
      await granted.berth.call('logout', {}).catch(() => undefined);
    }
  }

  /** A new session with a sudo grant. */
  async grant(profile: Profile, { password_stdin }: { readonly password_stdin: boolean }) {
    const password = password_stdin
      ? ((await this.#terminal.stdin()).split('\n')[0] ?? '')
      : await this.#terminal.askSecret(`Password of ${profile.email}`);
    const { session } = await this.openAsked(profile.email, password);
    const berth = new Berth({
      url: this.url,
      token: session.session_token,
      org: profile.org_id,
      user_agent: USER_AGENT,
    });
    try {
      const { expires_at, cookie } = await berth.sudo(password);
      return { berth, sudo: { session_token: session.session_token, cookie, expires_at } };
    } catch (error) {
      await berth.call('logout', {}).catch(() => undefined);
      throw error;
    }
  }
}
