/** Berth's own paths below `/.berth`, which no guest gets: tickets of browsers, and which names a proxy may get certificates for. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { ControlPlaneClient } from '../../protocol/client.ts';
import type { HttpRoute } from '../../protocol/ingress-types.ts';
import { isLoopback } from '../../shared/networks.ts';
import { newRequestId } from '../../shared/request-id.ts';
import { cookieName } from './fields.ts';
import type { Answering } from './incoming.ts';
import { notFound, Refusal, unavailable } from './refusal.ts';

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
