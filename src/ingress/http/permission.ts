/**
 * Decides whether a client may use a private port, by asking the control plane. An answer is cached for two seconds at
 * most. If the control plane does not answer, new requests are refused, and open connections end five seconds after
 * their last confirmation.
 *
 * Also answers Berth's own paths below `/.berth` on every port, which never reach a guest: there a browser redeems a
 * ticket for the port's cookie, and a TLS proxy on this machine asks whether a hostname is a port's.
 */
import { hash } from 'node:crypto';
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { ControlPlaneClient } from '../../protocol/client.ts';
import type { AuthoriseHttpResponse, HttpRoute } from '../../protocol/ingress-types.ts';
import { newRequestId } from '../../shared/ids.ts';
import { isLoopback } from '../../shared/networks.ts';
import type { HttpLimits } from '../limits.ts';
import { type Answering, cookieName, type PortCredential } from './incoming.ts';
import { notFound, Refusal, unauthenticated, unavailable } from './refusal.ts';

const KEPT_MAX = 20_000;

export interface Asking {
  readonly hostname: string;
  readonly address: string;
  readonly credential: PortCredential;
}

interface Kept {
  readonly answer: Promise<AuthoriseHttpResponse>;
  readonly asked_ms: number;
}

export class PortPermissions {
  readonly #client: Pick<ControlPlaneClient, 'authoriseHttp'>;
  readonly #limits: HttpLimits;
  readonly #kept = new Map<string, Kept>();

  constructor(client: Pick<ControlPlaneClient, 'authoriseHttp'>, limits: HttpLimits) {
    this.#client = client;
    this.#limits = limits;
  }

  /** How the client was let in. @throws Refusal 401, 403, 404, 503 */
  async require(route: HttpRoute, asking: Asking): Promise<'bearer' | 'cookie' | 'public'> {
    if (route.access === 'public') return 'public';
    const { bearer, cookie } = asking.credential;
    if (bearer === null && cookie === null) throw unauthenticated();
    const answer = await this.#ask(route, asking, this.#limits.permission_ms).catch(() => {
      throw unavailable('Berth cannot check your access at the moment. Try again shortly.');
    });
    if (answer.outcome === 'allowed') return answer.by;
    if (answer.outcome === 'unauthenticated') throw unauthenticated();
    if (answer.outcome === 'unknown') throw notFound();
    throw new Refusal(403, 'FORBIDDEN', 'Your credential does not have access to this port.');
  }

  /** For a connection that stays open. Null: the control plane does not answer. */
  async isAllowed(route: HttpRoute, asking: Asking): Promise<boolean | null> {
    if (route.access === 'public') return true;
    const { bearer, cookie } = asking.credential;
    if (bearer === null && cookie === null) return false;
    try {
      const { outcome } = await this.#ask(route, asking, this.#limits.permission_ms / 2);
      return outcome === 'allowed';
    } catch {
      return null;
    }
  }

  #ask(route: HttpRoute, asking: Asking, kept_ms: number): Promise<AuthoriseHttpResponse> {
    const { hostname, address, credential } = asking;
    const request = { port_id: route.port_id, hostname, address, ...credential };
    const key = hash('sha256', JSON.stringify(request));
    const now_ms = performance.now();
    const kept = this.#kept.get(key);
    if (kept && now_ms - kept.asked_ms < kept_ms) return kept.answer;
    const answer = this.#client.authoriseHttp(request);
    this.#kept.delete(key);
    this.#kept.set(key, { answer, asked_ms: now_ms });
    answer.catch(() => this.#kept.delete(key));
    this.#dropOld(now_ms);
    return answer;
  }

  /** Oldest first. */
  #dropOld(now_ms: number): void {
    for (const [key, { asked_ms }] of this.#kept) {
      if (this.#kept.size <= KEPT_MAX && now_ms - asked_ms < this.#limits.permission_ms) return;
      this.#kept.delete(key);
    }
  }
}

const OPEN = '/.berth/open';
const TLS_ALLOWED = '/.berth/tls-allowed';

/** Also in absolute-form, as clients send it to a proxy. */
export function isOwnPath(target: string): boolean {
  return /^(?:https?:\/\/[^/?]*)?\/\.berth(?:[/?]|$)/i.test(target);
}

/** A proxy on this machine asks for a name, without a port's hostname and without a client behind it. */
export function isTlsQuestion({ url, method, socket, headers }: IncomingMessage): boolean {
  const from_here = isLoopback(socket.remoteAddress ?? '') && headers['x-forwarded-for'] === undefined;
  return from_here && method === 'GET' && url?.split('?', 1)[0] === TLS_ALLOWED;
}

export const answerOwnPath = {
  /** 200: the name is a port's. */
  async tls(
    { url }: IncomingMessage,
    response: ServerResponse,
    find: (hostname: string) => Promise<HttpRoute | undefined>,
  ): Promise<void> {
    const domain = new URL(url ?? '/', 'http://localhost').searchParams.get('domain')?.toLowerCase() ?? '';
    const known = domain !== '' && (await find(domain)) !== undefined;
    response.writeHead(known ? 200 : 404, { 'content-length': '0', 'x-request-id': newRequestId() }).end();
  },

  /** Redeems a ticket for the cookie, and leads to the port without the ticket in the address. */
  async ticket(
    { request, response, method, target, checked: { hostname } }: Answering,
    route: HttpRoute,
    {
      client,
      secure,
    }: { readonly client: Pick<ControlPlaneClient, 'redeemHttpTicket'>; readonly secure: boolean },
  ): Promise<void> {
    const url = new URL(target, 'http://localhost');
    const ticket = url.searchParams.get('ticket');
    if (url.pathname !== OPEN || method !== 'GET' || ticket === null || ticket.length > 512) throw notFound();
    const headers: Record<string, string> = {
      location: '/',
      'cache-control': 'no-store',
      'referrer-policy': 'no-referrer',
      'content-length': '0',
      'x-request-id': newRequestId(),
    };
    if (route.access === 'private') {
      const answer = await client.redeemHttpTicket({ hostname, ticket }).catch(() => {
        throw unavailable('Berth cannot check this link at the moment. Try again shortly.');
      });
      if (answer.outcome === 'refused') {
        const message = 'This link has expired, or was used before. Open the port again from the console.';
        throw new Refusal(401, 'UNAUTHENTICATED', message);
      }
      headers['set-cookie'] =
        `${cookieName(secure)}=${answer.cookie}; Path=/; Max-Age=${answer.max_age_seconds}; HttpOnly; SameSite=Lax` +
        (secure ? '; Secure' : '');
    }
    request.resume();
    response.writeHead(303, headers).end();
  },
};
