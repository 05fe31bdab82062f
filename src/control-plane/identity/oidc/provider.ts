/**
 * Talks to the OpenID provider that people log in at: the authorisation code flow with PKCE, state and nonce, and
 * refreshes. `Flows` encrypts the cookie that a browser keeps between the start of a login and the callback.
 *
 * The library (openid-client) verifies signatures, issuer, audience, expiry, nonce and state. An answer to a refresh,
 * or of the userinfo endpoint, must be about the same subject.
 */

import { randomBytes } from 'node:crypto';
import type { Configuration, IDToken } from 'openid-client';
import type { OrgId, SessionId, UserId } from '../../../shared/ids.ts';
import type { QuotaLimits } from '../../../shared/quotas.ts';
import type { Role } from '../../../shared/roles.ts';
import { Sealer } from '../../../shared/seal.ts';
import type { AuditLog } from '../../audit/append.ts';
import type { Db } from '../../db/pool.ts';
import { type Claimed, readClaims } from './claims.ts';

export interface ProviderSettings {
  /** Without a trailing slash. */
  readonly issuer: string;
  readonly client_id: string;
  readonly client_secret: string;
  readonly groups: readonly { readonly group: string; readonly org_id: OrgId; readonly role: Role }[];
  /** Where the provider sends browsers back. */
  readonly redirect_uri: string;
}

export function redirectUri(public_url: string): string {
  return `${public_url}/v1/auth/oidc/callback`;
}

/** `refused`: by the person or the provider. `invalid`: an answer that proves nothing. `unreachable`: no usable answer. */
export class ProviderError extends Error {
  override readonly name = 'ProviderError';
  readonly kind: 'refused' | 'invalid' | 'unreachable';

  /** The message holds no token: it is logged. */
  constructor(kind: ProviderError['kind'], message: string) {
    super(message);
    this.kind = kind;
  }
}

/** What only this flow knows. */
export interface FlowSecrets {
  readonly state: string;
  readonly nonce: string;
  readonly verifier: string;
}

export interface ProviderProof {
  readonly person: Claimed;
  /** Null: the provider gave none. */
  readonly refresh_token: string | null;
}

const ANSWER_S = 8;
/** After this time the provider's document is read again. */
const DOCUMENT_MS = 3_600_000;
const GOOGLE = 'https://accounts.google.com';

export class OidcProvider {
  readonly settings: ProviderSettings;
  #found: { readonly configuration: Configuration; readonly at_ms: number } | null = null;

  constructor(settings: ProviderSettings) {
    this.settings = settings;
  }

  get issuer(): string {
    return this.settings.issuer;
  }

  /** For people. */
  get name(): string {
    return new URL(this.settings.issuer).host;
  }

  /** Reads the provider's document anew. @throws ProviderError */
  async check(): Promise<void> {
    await this.#discover();
  }

  /** Where a browser goes. `again`: the person must prove anew who they are. @throws ProviderError */
  async authorisationUrl({ state, nonce, verifier }: FlowSecrets, again: boolean): Promise<URL> {
    const configuration = await this.#configuration();
    const { buildAuthorizationUrl, calculatePKCECodeChallenge } = await import('openid-client');
    const { scopes_supported = [] } = configuration.serverMetadata();
    const known = ['groups', 'offline_access'].filter((scope) => scopes_supported.includes(scope));
    // Google's word for offline_access. It gives the token only with its page of consent.
    const google = this.issuer === GOOGLE ? { access_type: 'offline', prompt: 'consent' } : {};
    return buildAuthorizationUrl(configuration, {
      redirect_uri: this.settings.redirect_uri,
      scope: ['openid', 'email', 'profile', ...known].join(' '),
      state,
      nonce,
      code_challenge: await calculatePKCECodeChallenge(verifier),
      code_challenge_method: 'S256',
      ...google,
      ...(again ? { prompt: 'login', max_age: '0' } : {}),
    });
  }

  /** Exchanges the code that the browser has brought. `query`: of the redirect. @throws ProviderError */
  async finish(query: string, { state, nonce, verifier }: FlowSecrets): Promise<ProviderProof> {
    const configuration = await this.#configuration();
    const { authorizationCodeGrant } = await import('openid-client');
    const url = new URL(this.settings.redirect_uri);
    url.search = query;
    const checks = { expectedState: state, expectedNonce: nonce, pkceCodeVerifier: verifier };
    const tokens = await asProviderError(authorizationCodeGrant(configuration, url, checks));
    const claims = tokens.claims();
    if (!claims) throw new ProviderError('invalid', 'the answer has no ID token');
    const { access_token, refresh_token } = tokens;
    return {
      person: await this.#person(configuration, access_token, claims.sub, claims),
      refresh_token: refresh_token ?? null,
    };
  }

  /**
   * What the provider says of the person now.
   * @throws ProviderError `refused` where the provider no longer accepts the token
   */
  async refresh(subject: string, given: string): Promise<ProviderProof> {
    const configuration = await this.#configuration();
    const { refreshTokenGrant } = await import('openid-client');
    const tokens = await asProviderError(refreshTokenGrant(configuration, given));
    const claims = tokens.claims();
    if (claims && claims.sub !== subject) {
      throw new ProviderError('invalid', 'the refreshed ID token is of another person');
    }
    const { access_token, refresh_token } = tokens;
    return {
      person: await this.#person(configuration, access_token, subject, claims),
      refresh_token: refresh_token ?? given,
    };
  }

  /** Providers put claims into the ID token, the userinfo endpoint, or both. The signed ones win. */
  async #person(
    configuration: Configuration,
    access_token: string,
    subject: string,
    signed: IDToken | undefined,
  ): Promise<Claimed> {
    const { fetchUserInfo } = await import('openid-client');
    const has_userinfo = configuration.serverMetadata().userinfo_endpoint !== undefined;
    const told = has_userinfo
      ? await asProviderError(fetchUserInfo(configuration, access_token, subject))
      : {};
    const person = readClaims(this.issuer, { ...told, ...signed, sub: subject });
    if (!person) throw new ProviderError('invalid', 'the subject is not valid');
    return person;
  }

  async #configuration(): Promise<Configuration> {
    const found = this.#found;
    if (found && performance.now() - found.at_ms < DOCUMENT_MS) return found.configuration;
    return this.#discover();
  }

  async #discover(): Promise<Configuration> {
    const { allowInsecureRequests, ClientSecretBasic, ClientSecretPost, discovery } = await import(
      'openid-client'
    );
    const { issuer, client_id, client_secret } = this.settings;
    const insecure = issuer.startsWith('http:') ? { execute: [allowInsecureRequests] } : {};
    // The library needs a method before the document names those that the provider knows.
    const authenticate: ReturnType<typeof ClientSecretPost> = (server, ...rest) => {
      const posts = server.token_endpoint_auth_methods_supported?.includes('client_secret_post') === true;
      return (posts ? ClientSecretPost : ClientSecretBasic)(client_secret)(server, ...rest);
    };
    const configuration = await asProviderError(
      discovery(new URL(issuer), client_id, { client_secret }, authenticate, {
        ...insecure,
        timeout: ANSWER_S,
      }),
    );
    configuration.timeout = ANSWER_S;
    this.#found = { configuration, at_ms: performance.now() };
    return configuration;
  }
}

interface LibraryError {
  readonly name?: string;
  readonly code?: string;
  readonly error?: string;
  readonly error_description?: string;
  readonly message?: string;
  readonly cause?: unknown;
}

/** The library's errors hold responses with tokens as their causes. Only their codes and texts go on. */
async function asProviderError<T>(work: Promise<T>): Promise<T> {
  try {
    return await work;
  } catch (thrown) {
    throw providerError(thrown as LibraryError);
  }
}

const ANSWERS_NO: ReadonlySet<string | undefined> = new Set([
  ...['access_denied', 'invalid_grant', 'login_required', 'interaction_required', 'consent_required'],
]);

function providerError({
  name,
  code,
  error,
  error_description,
  message,
  cause,
}: LibraryError): ProviderError {
  const text = [error ?? code ?? name, error_description ?? message].join(': ').slice(0, 300);
  if (ANSWERS_NO.has(error)) return new ProviderError('refused', text);
  const status = cause instanceof Response ? cause.status : 200;
  const no_answer =
    name === 'TypeError' || code === 'OAUTH_TIMEOUT' || code === 'OAUTH_ABORT' || status >= 500;
  // The library's own TypeErrors are about its arguments, and have a code.
  const unreachable = (no_answer && !(name === 'TypeError' && code !== undefined)) || status === 404;
  const why = cause instanceof Error ? `: ${cause.message}` : '';
  return new ProviderError(unreachable ? 'unreachable' : 'invalid', text + (unreachable ? why : ''));
}

/** What a login at the provider, and the checks after it, need. */
export interface OidcContext {
  readonly db: Db;
  readonly audit: AuditLog;
  readonly quotas: QuotaLimits;
  readonly signups: 'open' | 'closed';
  readonly provider: OidcProvider;
  /** Seals refresh tokens. */
  readonly identities: Sealer;
}

// One way of a browser to the provider and back. What it must remember is in a cookie, encrypted and authenticated with a
// key of the server, so that only the browser that has begun can come back, and the server stores nothing.

export const FLOW_LIFETIME_S = 600;

export interface Flow extends FlowSecrets {
  /** The session that asks for sudo; null: a login. */
  readonly sudo: { readonly session_id: SessionId; readonly user_id: UserId } | null;
  /** A path of the console. */
  readonly return_to: string;
  /** In seconds since the epoch. */
  readonly began_at: number;
}

const random = () => randomBytes(32).toString('base64url');
const nowS = () => Math.floor(Date.now() / 1000);

export function newFlow(sudo: Flow['sudo'], return_to: string): Flow {
  return { state: random(), nonce: random(), verifier: random(), sudo, return_to, began_at: nowS() };
}

export class Flows {
  readonly #sealer: Sealer;

  constructor(root_key: Uint8Array) {
    this.#sealer = new Sealer(root_key, 'berth oidc flows v1');
  }

  seal(flow: Flow): string {
    return this.#sealer.seal(JSON.stringify(flow), 'flow').toString('base64url');
  }

  /** Null: the cookie is not ours, or too old. */
  open(cookie: string): Flow | null {
    const text = this.#sealer.open(Buffer.from(cookie, 'base64url'), 'flow');
    if (text === null) return null;
    const flow = JSON.parse(text) as Flow;
    return nowS() - flow.began_at > FLOW_LIFETIME_S ? null : flow;
  }
}

/** A path of our own console, from a query; everything else becomes `/`. */
export function ownPath(text: string | undefined, public_url: string): string {
  if (text === undefined || !/^\/[\w\-./~%@:+]*(\?[\w\-./~%@:+&=]*)?$/.test(text)) return '/';
  const url = URL.parse(text, public_url);
  if (url?.origin !== new URL(public_url).origin) return '/';
  // Without `..`, which the parser has removed: `/..//evil.test` would lead to another site.
  const path = url.pathname + url.search;
  return /^\/(\/|v1(\/|$))/.test(path) ? '/' : path;
}
