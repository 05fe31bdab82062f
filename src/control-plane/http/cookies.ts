/**
 * Sets, clears and reads the cookies of the public API (RFC 6265bis, sections 4.1.2 and 4.1.3). Their attributes are
 * part of the public interface. There are three:
 *
 * - the refresh token of the console's session, which only POST /v1/auth/refresh reads
 * - the sudo grant
 * - the state of a login at the OpenID provider. It alone is SameSite=Lax, because the provider's page leads back
 */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { assert } from '../../shared/assert.ts';
import { FLOW_LIFETIME_S } from '../identity/oidc/provider.ts';
import { SESSION_LIFETIME_S, SUDO_LIFETIME_S } from '../identity/sessions.ts';

export const REFRESH_COOKIE = '__Host-berth_refresh';
export const SUDO_COOKIE = '__Secure-berth_sudo';
export const FLOW_COOKIE = '__Host-berth_oidc';

export function setRefreshCookie(reply: FastifyReply, token: string): void {
  setCookie(reply, `${REFRESH_COOKIE}=${token}; Path=/; Max-Age=${SESSION_LIFETIME_S}`);
}

export function clearRefreshCookie(reply: FastifyReply): void {
  setCookie(reply, `${REFRESH_COOKIE}=; Path=/; Max-Age=0`);
}

export function setSudoCookie(reply: FastifyReply, token: string): void {
  setCookie(reply, `${SUDO_COOKIE}=${token}; Path=/v1; Max-Age=${SUDO_LIFETIME_S}`);
}

export function setFlowCookie(reply: FastifyReply, sealed: string): void {
  setCookie(reply, `${FLOW_COOKIE}=${sealed}; Path=/; Max-Age=${FLOW_LIFETIME_S}`, 'Lax');
}

export function clearFlowCookie(reply: FastifyReply): void {
  setCookie(reply, `${FLOW_COOKIE}=; Path=/; Max-Age=0`, 'Lax');
}

function setCookie(reply: FastifyReply, cookie: string, same_site: 'Strict' | 'Lax' = 'Strict'): void {
  assert(reply.request.routeOptions.config.sets_cookie === true, 'the route declares its cookie');
  reply.header('set-cookie', `${cookie}; HttpOnly; Secure; SameSite=${same_site}`);
}

/** A cookie's value; undefined where it is absent or sent twice. */
export function readCookie(request: FastifyRequest, name: string): string | undefined {
  const header = request.headers.cookie ?? '';
  const values = header
    .split(';')
    .map((pair) => pair.trim())
    .filter((pair) => pair.startsWith(`${name}=`))
    .map((pair) => pair.slice(name.length + 1));
  return values.length === 1 ? values[0] : undefined;
}
