/**
 * The host names that Berth answers to, and the origins of its own pages. Both come from the settings and the listener,
 * never from the request: another site can point its name at our address (DNS rebinding), and a browser then sends that
 * name as Host and Origin.
 *
 * - Names: those of the public URL, the loopback and BERTH_HOSTS, and the address of the listener. Ports do not matter.
 * - Origins: the public URL; each name with the listener's scheme and port; those of BERTH_HOSTS also with the public URL's.
 */
import type { IncomingMessage } from 'node:http';
import type { FastifyInstance, FastifyRequest } from 'fastify';
import { AppError } from '../../../shared/errors.ts';
import { isLoopback } from '../../../shared/networks.ts';
import type { AppContext } from '../../context.ts';

declare module 'fastify' {
  interface FastifyContextConfig {
    /** Refuses requests of other sites' pages. For routes that set or trust a cookie. */
    own_site?: boolean;
  }
}

/** A name or an address, with or without a port. */
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
    // A host in the request line takes precedence (RFC 9112, section 3.2.2).
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

  /** A present `Origin` must be one of ours. @throws AppError FORBIDDEN */
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

/** Without the brackets of an IPv6 address. */
function nameOf(origin: string): string {
  return new URL(origin).hostname.replace(/^\[(.*)\]$/, '$1');
}

/** The origin with another host. */
function at(hostname: string, origin: string): string {
  const url = new URL(origin);
  url.hostname = hostname;
  return url.origin;
}

/** For a request's raw headers, which alternate names and values. */
function isHostName(text: string, index: number): boolean {
  return index % 2 === 0 && text.toLowerCase() === 'host';
}

/** Node takes the first one, but a proxy before us may have checked another (RFC 9112, section 3.2). */
function severalHosts(): AppError {
  return new AppError('INVALID_REQUEST', { message: 'The request has more than one Host header. Send one.' });
}

function misdirected(): AppError {
  return new AppError('MISDIRECTED_REQUEST');
}

/** Checks Host on every request, and on routes with `own_site` that no page of another site has sent it. */
export function registerKnownHosts(app: FastifyInstance, known: KnownHosts): void {
  app.addHook('onRequest', (request, _reply, done) => {
    // Load balancers send probes to an address, not a name.
    if (!PROBES.has(request.routeOptions.url)) known.requireHost(request.raw);
    if (request.routeOptions.config.own_site === true) refuseForeignSite(request, known);
    done();
  });
}

/** A present `Sec-Fetch-Site` (Fetch Metadata) or `Origin` (RFC 6454) must be ours. @throws AppError FORBIDDEN */
function refuseForeignSite(request: FastifyRequest, known: KnownHosts): void {
  const site = request.headers['sec-fetch-site'];
  if (site !== undefined && site !== 'same-origin' && site !== 'none') throw foreignSite();
  known.requireOwnOrigin(request.raw);
}

function foreignSite(): AppError {
  // Also of our console behind a tunnel from another port, hence the advice.
  const message =
    'A page of another site may not do that. Open the console at the public URL, or at the port that Berth listens on.';
  return new AppError('FORBIDDEN', { message });
}
