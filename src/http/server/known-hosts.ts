/**
 * The names that Berth answers to, and the origins of its own pages. Both come from the settings and the listener, never
 * from the request: a page of another site may give its own name an address of ours (DNS rebinding), and its browser then
 * sends that name as Host and Origin.
 *
 * - Names: that of the public URL, the loopback's, those of BERTH_HOSTS, and the address listened at. Ports do not matter.
 * - Origins: the public URL; each name at the listener's scheme and port; those of BERTH_HOSTS also at the public URL's.
 */
import type { IncomingMessage } from 'node:http';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { AppError } from '../../lib/errors.ts';
import { isLoopback } from '../../lib/loopback.ts';
import type { AppContext } from '../context.ts';

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Refuses what a page of another site has sent: where a cookie is set or believed. */
    own_site?: boolean;
  }
}

/** A name or an address, with a port or without. */
const AUTHORITY = /^(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{0,5})?$/i;
const PROBES: ReadonlySet<string | undefined> = new Set(['/healthz', '/readyz']);

type Settings = Pick<AppContext, 'public_url' | 'hosts' | 'tls'>;

export class KnownHosts {
  readonly #public_url: string;
  readonly #hosts: ReadonlySet<string>;
  readonly #scheme: 'http' | 'https';

  constructor({ public_url, hosts = [], tls }: Settings) {
    this.#public_url = public_url;
    this.#hosts = new Set(hosts.map((host) => host.toLowerCase()));
    this.#scheme = tls === null ? 'http' : 'https';
  }

  /** @throws AppError MISDIRECTED_REQUEST, INVALID_REQUEST */
  requireHost({
    headers,
    rawHeaders,
    url = '/',
  }: Pick<IncomingMessage, 'headers' | 'rawHeaders' | 'url'>): void {
    if (rawHeaders.filter(isHostName).length > 1) throw severalHosts();
    if (headers.host !== undefined && !this.#answersTo(headers.host)) throw misdirected();
    // Where the request line names a host, that one counts (RFC 9112, section 3.2.2).
    if (!url.startsWith('/') && url !== '*' && !this.#answersTo(URL.parse(url)?.host ?? ''))
      throw misdirected();
  }

  #answersTo(authority: string): boolean {
    const match = AUTHORITY.exec(authority);
    return match?.[1] !== undefined && this.#isName(match[1]);
  }

  #isName(text: string): boolean {
    const name = text.replace(/^\[(.*)\]$/, '$1').toLowerCase();
    return isLoopback(name) || this.#hosts.has(name) || name === nameOf(this.#public_url);
  }

  /** `Origin`, if there, must be one of our own. @throws AppError FORBIDDEN */
  requireOwnOrigin({ headers, socket }: Pick<IncomingMessage, 'headers' | 'socket'>): void {
    const { origin } = headers;
    if (origin !== undefined && !this.#isOwn(origin, socket.localPort)) throw foreignSite();
  }

  #isOwn(origin: string, port: number | undefined): boolean {
    if (origin === this.#public_url) return true;
    const url = URL.parse(origin);
    if (url?.origin !== origin) return false;
    if (
      this.#isName(url.hostname) &&
      origin === at(url.hostname, `${this.#scheme}://listener:${port ?? ''}`)
    ) {
      return true;
    }
    return this.#hosts.has(nameOf(origin)) && origin === at(url.hostname, this.#public_url);
  }
}

/** Brackets of an IPv6 address left away. */
function nameOf(origin: string): string {
  return new URL(origin).hostname.replace(/^\[(.*)\]$/, '$1');
}

/** That scheme and port, of another host. */
function at(hostname: string, origin: string): string {
  const url = new URL(origin);
  url.hostname = hostname;
  return url.origin;
}

/** Of a request's raw headers, in which names and values take turns. */
function isHostName(text: string, index: number): boolean {
  return index % 2 === 0 && text.toLowerCase() === 'host';
}

/** Node takes the first, and a proxy before us may have judged another one (RFC 9112, section 3.2). */
function severalHosts(): AppError {
  return new AppError('INVALID_REQUEST', { message: 'The request has more than one Host header.' });
}

function misdirected(): AppError {
  return new AppError('MISDIRECTED_REQUEST');
}

/** On every request: a known host, and our own pages alone where the route wants that. */
export function registerKnownHosts(app: FastifyInstance, known: KnownHosts): void {
  app.addHook('onRequest', (request, _reply, done) => {
    // Load balancers probe by address.
    if (!PROBES.has(request.routeOptions.url)) known.requireHost(request.raw);
    if (request.routeOptions.config.own_site === true) refuseForeignSite(request, known);
    done();
  });
}

/** `Sec-Fetch-Site` (Fetch Metadata) or `Origin` (RFC 6454), if there, must be our own. @throws AppError FORBIDDEN */
function refuseForeignSite(request: FastifyRequest, known: KnownHosts): void {
  const site = request.headers['sec-fetch-site'];
  if (site !== undefined && site !== 'same-origin' && site !== 'none') throw foreignSite();
  known.requireOwnOrigin(request.raw);
}

function foreignSite(): AppError {
  // The console's own, behind a tunnel from another port.
  const message =
    'A page of another site may not do that. Open the console at the public URL, or at the port that Berth listens at.';
  return new AppError('FORBIDDEN', { message });
}
