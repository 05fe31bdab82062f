/**
 * Runs a real OpenID provider on loopback (the npm package `oidc-provider`), with accounts that the test changes while
 * it runs, and a form for the login.
 */
import { randomBytes } from 'node:crypto';
import { once } from 'node:events';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import type { AppContext } from '../../src/control-plane/context.ts';
import { identitySealer } from '../../src/control-plane/identity/oidc/identity-store.ts';
import {
  Flows,
  OidcProvider,
  type ProviderSettings,
  redirectUri,
} from '../../src/control-plane/identity/oidc/provider.ts';

export interface ProviderAccount {
  email?: string;
  email_verified?: boolean;
  name?: string;
  groups?: string[];
  [more: string]: unknown;
}

export interface TestProvider {
  readonly issuer: string;
  readonly client_id: string;
  readonly client_secret: string;
  /** By subject, which is also the name to log in with. A removed one can neither log in nor refresh. */
  readonly accounts: Map<string, ProviderAccount>;
  /** `ignores_prompt`: of a request for sudo. `auth_age_s`: how long ago a login was, as the provider says it. */
  readonly state: { down: boolean; refresh_tokens: boolean; ignores_prompt: boolean; auth_age_s: number };
  /** How many refreshes the provider has answered. */
  refreshes(): number;
  close(): Promise<void>;
}

/** @param redirect_uris where it may send browsers back to */
export async function startProvider(redirect_uris: string[]): Promise<TestProvider> {
  // Its load is slow, and few tests need it.
  const { default: Provider, errors } = await import('oidc-provider');
  const server: Server = createServer();
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const issuer = `http://127.0.0.1:${(server.address() as AddressInfo).port}`;
  const [client_id, client_secret] = ['berth', randomBytes(24).toString('base64url')];
  const accounts = new Map<string, ProviderAccount>();
  const state = { down: false, refresh_tokens: true, ignores_prompt: false, auth_age_s: 0 };
  let refreshes = 0;
  const provider = new Provider(issuer, {
    clients: [
      {
        client_id,
        client_secret,
        redirect_uris,
        grant_types: ['authorization_code', 'refresh_token'],
        response_types: ['code'],
        require_auth_time: true,
      },
    ],
    scopes: ['openid', 'email', 'profile', 'groups', 'offline_access'],
    claims: { openid: ['sub'], email: ['email', 'email_verified'], profile: ['name'], groups: ['groups'] },
    features: { devInteractions: { enabled: false }, userinfo: { enabled: true } },
    cookies: { keys: [randomBytes(16).toString('hex')] },
    ttl: {
      AccessToken: 600,
      Grant: 86_400,
      IdToken: 600,
      Interaction: 600,
      RefreshToken: 86_400,
      Session: 86_400,
    },
    pkce: { required: () => true },
    rotateRefreshToken: true,
    issueRefreshToken: async () => state.refresh_tokens,
    interactions: { url: (_ctx: unknown, interaction: { uid: string }) => `/interaction/${interaction.uid}` },
    findAccount: async (_ctx: unknown, sub: string) => {
      const account = accounts.get(sub);
      return account && { accountId: sub, claims: async () => ({ sub, ...account }) };
    },
    // Whoever is logged in has consented.
    loadExistingGrant: async ({ oidc: { client, session, params, provider } }) => {
      if (!client || !session?.accountId) return undefined;
      const grant = new provider.Grant({ clientId: client.clientId, accountId: session.accountId });
      grant.addOIDCScope(String(params?.['scope']));
      await grant.save();
      return grant;
    },
  });
  provider.on('grant.success', ({ oidc }) => {
    if (oidc.params?.['grant_type'] === 'refresh_token') refreshes += 1;
  });
  const answer = provider.callback();
  server.on('request', (request: IncomingMessage, response: ServerResponse) => {
    if (state.down) return void response.writeHead(503).end();
    if (state.ignores_prompt) request.url = request.url?.replace('&prompt=login&max_age=0', '');
    const uid = /^\/interaction\/([\w-]+)$/.exec(request.url ?? '')?.[1];
    if (uid === undefined) return void answer(request, response);
    interaction(provider, accounts, state, request, response).catch((error: unknown) => {
      const known = error instanceof errors.OIDCProviderError;
      response.writeHead(known ? 400 : 500).end(String(error));
    });
  });
  return {
    issuer,
    client_id,
    client_secret,
    accounts,
    state,
    refreshes: () => refreshes,
    close: async () => {
      server.closeAllConnections();
      server.close();
      await once(server, 'close');
    },
  };
}

interface Interactions {
  interactionFinished(request: IncomingMessage, response: ServerResponse, result: object): Promise<void>;
}

const FORM = `<!doctype html><html lang="en"><title>Provider</title><main><h1>Log in to the provider</h1>
<form method="post"><label>Account <input name="account" autofocus required></label>
<button>Continue</button> <button name="refuse" value="yes" formnovalidate>Refuse</button></form></main></html>`;

/** The page of the login: whoever names an account is it. */
async function interaction(
  provider: Interactions,
  accounts: ReadonlyMap<string, ProviderAccount>,
  { auth_age_s }: { readonly auth_age_s: number },
  request: IncomingMessage,
  response: ServerResponse,
): Promise<void> {
  if (request.method !== 'POST')
    return void response.writeHead(200, { 'content-type': 'text/html' }).end(FORM);
  let body = '';
  for await (const part of request) body += String(part);
  const given = new URLSearchParams(body);
  const accountId = given.get('account') ?? '';
  const refused = given.has('refuse') || !accounts.has(accountId);
  const result = refused
    ? { error: 'access_denied', error_description: 'the person has refused' }
    : { login: { accountId, ts: Math.floor(Date.now() / 1000) - auth_age_s } };
  await provider.interactionFinished(request, response, result);
}

/** The settings of an API that people log in to at this provider. */
export function oidcContext(
  provider: Pick<TestProvider, 'issuer' | 'client_id' | 'client_secret'>,
  public_url: string,
  groups: ProviderSettings['groups'] = [],
  root_key = randomBytes(32),
): Pick<AppContext, 'oidc' | 'public_url' | 'root_key'> {
  const { issuer, client_id, client_secret } = provider;
  const settings = { issuer, client_id, client_secret, groups, redirect_uri: redirectUri(public_url) };
  return {
    public_url,
    root_key,
    oidc: {
      provider: new OidcProvider(settings),
      flows: new Flows(root_key),
      identities: identitySealer(root_key),
    },
  };
}
