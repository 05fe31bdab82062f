/**
 * Registers what holds for every request before its handler runs: the headers of the answer, which host names and
 * origins are accepted, how a body is parsed, and the request's trace and log line. Schemas are compiled at their first
 * use.
 */
import { isUtf8 } from 'node:buffer';
import type { IncomingMessage } from 'node:http';
import AjvCompiler from '@fastify/ajv-compiler';
import SerializerSelector from '@fastify/fast-json-stringify-compiler';
import type { FastifyInstance, FastifyRequest, FastifyServerOptions } from 'fastify';
import { AppError } from '../../shared/errors.ts';
import { isId } from '../../shared/ids.ts';
import { isLoopback } from '../../shared/networks.ts';
import { traceContextOf, Work, type WorkOptions } from '../../shared/tracing.ts';
import type { AppContext } from '../context.ts';
import { EmptyBody } from './schemas.ts';

export const DOCS_PREFIX = '/docs';
export const MCP_PATH = '/mcp';

/** For browsers. The pages of `/docs` have their own content policy. */
const HEADERS = { 'x-content-type-options': 'nosniff', 'referrer-policy': 'no-referrer' };
const API_HEADERS = {
  'cache-control': 'no-store',
  'content-security-policy': "default-src 'none'; base-uri 'none'; frame-ancestors 'none'",
};
/** Without `includeSubDomains`: we know nothing of the hosts below this name. */
const HTTPS_HEADERS = { 'strict-transport-security': 'max-age=31536000' };

/** Refusals whose log line names the caller's address. */
const REFUSALS: ReadonlySet<number> = new Set([401, 403, 421, 423, 429]);

export function registerConventions(app: FastifyInstance, https: boolean): void {
  const everywhere = { ...HEADERS, ...(https ? HTTPS_HEADERS : {}) };
  const api = { ...everywhere, ...API_HEADERS };
  let closing = false;
  app.addHook('preClose', async () => {
    closing = true;
  });
  // Hooks that wait for nothing use the callback: an async hook costs a turn of the event loop.
  app.addHook('onRequest', (request, reply, done) => {
    reply.headers(request.url.startsWith(DOCS_PREFIX) ? everywhere : api);
    reply.header('x-request-id', request.id);
    if (closing) {
      const message = 'The server is stopping. Try again shortly.';
      throw new AppError('UNAVAILABLE', { message, retry_after_seconds: 1 });
    }
    if (request.headers.host === undefined && request.raw.httpVersion === '1.1') {
      throw new AppError('INVALID_REQUEST', {
        message: 'The request has no Host header. HTTP/1.1 needs one.',
      });
    }
    done();
  });
  // A route that declares no query takes none: unknown query parameters are refused everywhere.
  app.addHook('onRoute', (route) => {
    if (route.url.startsWith('/v1/')) route.schema = { querystring: EmptyBody, ...route.schema };
  });
  app.addHook('onResponse', (request, reply, done) => {
    const level = isProbe(request.routeOptions.url) ? 'debug' : 'info';
    request.log[level](
      {
        method: request.method,
        route: request.routeOptions.url ?? null,
        status: reply.statusCode,
        duration_ms: Math.round(reply.elapsedTime),
        principal: request.principal?.credential.id ?? null,
        ...(REFUSALS.has(reply.statusCode) ? { ip: request.ip } : {}),
      },
      'request',
    );
    done();
  });
}

/** Supervisors ask these every second or so. */
function isProbe(url: string | undefined): boolean {
  return url === '/healthz' || url === '/readyz';
}

// How the body of a request is read: JSON, or bytes where a route takes them, and an empty body is no body, with or without Content-Type.

declare module 'fastify' {
  interface FastifyContextConfig {
    /** The body is bytes, of any type. */
    raw_body?: boolean;
    /** The body is bytes of any type and number, which the handler reads as they come; see {@link registerStreamedBodies}. */
    streamed_body?: boolean;
  }
}

export function registerContentTypes(app: FastifyInstance): void {
  app.removeContentTypeParser(['application/json', 'text/plain']);
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (request, bytes, done) => {
    if (request.routeOptions.config.raw_body === true) return done(null, bytes);
    if (bytes.length === 0) return done(null, undefined);
    try {
      done(null, parseJson(bytes as Buffer));
    } catch {
      done(new AppError('INVALID_REQUEST', { message: 'The body is not valid JSON.' }), undefined);
    }
  });
  // Clients that send an empty body name various types for it, which we accept. Not on public routes: there a page of
  // another site could send these types, which it cannot do with JSON.
  app.addContentTypeParser('*', { parseAs: 'buffer' }, (request, bytes, done) => {
    if (request.routeOptions.config.raw_body === true) return done(null, bytes);
    const harmless = bytes.length === 0 && request.routeOptions.config.access !== 'public';
    done(harmless || request.is404 ? null : new AppError('UNSUPPORTED_MEDIA_TYPE'), undefined);
  });
  app.addHook('preValidation', (request, _reply, done) => {
    if (request.routeOptions.schema?.body !== undefined) request.body ??= {};
    done();
  });
}

/** On a scope of `app` whose routes have a `streamed_body`. */
export function registerStreamedBodies(scope: FastifyInstance): void {
  scope.removeAllContentTypeParsers();
  scope.addContentTypeParser('*', (_request, body, done) => done(null, body));
}

/** Each letter of `__proto__` as itself or escaped. */
const LETTERS = [...'__proto__'].map((letter) => {
  const code = letter.charCodeAt(0).toString(16).replace('f', '[fF]');
  return `(?:${letter}|\\\\u00${code})`;
});
/** That key. A reviver would find it, too, at sixty times the cost of parsing: callers without a credential could hold up everybody. */
const PROTOTYPE_KEY = new RegExp(`"${LETTERS.join('')}"\\s*:`);

/** JSON.parse that refuses keys which reach an object's prototype, and bytes that decode to another text than was sent. */
export function parseJson(bytes: Buffer): unknown {
  if (!isUtf8(bytes)) throw new SyntaxError('not UTF-8');
  const text = bytes.toString('utf8');
  if (PROTOTYPE_KEY.test(text)) throw new SyntaxError('forbidden key');
  return JSON.parse(text);
}

// The host names that Berth answers to, and the origins of its own pages. Both come from the settings and the listener,
// never from the request: another site can point its name at our address (DNS rebinding), and a browser then sends that
// name as Host and Origin.
//
// - Names: those of the public URL, the loopback and BERTH_HOSTS, and the address of the listener. Ports do not matter.
// - Origins: the public URL; each name with the listener's scheme and port; those of BERTH_HOSTS also with the public URL's.

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

// Compiles the schemas of a route at its first request. All of them take about a second of CPU time at the start, and most
// installations never use most routes. Each is compiled once, by Fastify's own compilers.

type Factories = NonNullable<NonNullable<FastifyServerOptions['schemaController']>['compilersFactory']>;

interface Route {
  readonly httpPart?: string;
  readonly schema: { readonly properties?: Readonly<Record<string, unknown>> };
}

interface Validate {
  (...args: readonly unknown[]): unknown;
  errors?: unknown;
}

/** For Fastify's `schemaController`. */
export function lazySchemas(): { compilersFactory?: Factories } {
  const validators = AjvCompiler();
  const serializers = SerializerSelector();
  return {
    compilersFactory: {
      buildValidator: ((...given: Parameters<typeof validators>) => {
        const compile = validators(...given) as (route: Route) => Validate;
        return (route: Route) => lazyValidator(() => compile(withLowerCaseHeaders(route)));
      }) as unknown as NonNullable<Factories['buildValidator']>,
      buildSerializer: (...given: Parameters<typeof serializers>) => {
        const compile = serializers(...given);
        return (route) => {
          let serialize: ReturnType<typeof compile> | undefined;
          return (body) => {
            serialize ??= compile(route);
            return serialize(body);
          };
        };
      },
    },
  };
}

/** Fastify reads the errors from the function, where ajv puts them. */
function lazyValidator(compile: () => Validate): Validate {
  let compiled: Validate | undefined;
  const validate: Validate = (...args) => {
    compiled ??= compile();
    const valid = compiled(...args);
    validate.errors = compiled.errors;
    return valid;
  };
  return validate;
}

/** Node gives header names in lower case. Fastify adapts the schema only where it compiles it itself. */
function withLowerCaseHeaders(route: Route): Route {
  const { properties } = route.schema;
  if (route.httpPart !== 'headers' || !properties) return route;
  const lowered = Object.entries(properties).map(([name, schema]) => [name.toLowerCase(), schema]);
  return { ...route, schema: { ...route.schema, properties: Object.fromEntries(lowered) } };
}

// Each request is work: log lines name it, and a span has its route and status, never its path or query.

declare module 'fastify' {
  interface FastifyRequest {
    /** Null before the hooks of the request. */
    work: Work | null;
  }
}

/** Comes before all other hooks. */
export function registerWork(app: FastifyInstance, workOf: (request: FastifyRequest) => WorkOptions): void {
  app.decorateRequest('work', null);
  app.addHook('onRequest', (request, reply, done) => {
    const work = new Work({ kind: 'server', ...workOf(request) });
    request.work = work;
    // Also of a request whose caller disconnects, which has no answer.
    reply.raw.once('close', () => work.end());
    work.run(() => done());
  });
  // The reading of a body leaves the work.
  app.addHook('preValidation', ({ work }, _reply, done) => (work ? work.run(() => done()) : done()));
  app.addHook('onResponse', ({ work }, { statusCode }, done) => {
    if (!work) return done();
    work.note({ 'http.response.status_code': statusCode });
    // The log line is among these hooks.
    work.run(() => done());
    return work.end(statusCode >= 500 ? String(statusCode) : null);
  });
}

/** Of the public API. Pages and probes have no span. */
export function publicWork(request: FastifyRequest): WorkOptions {
  const { url } = request.routeOptions;
  const is_api = url?.startsWith('/v1/') || url === MCP_PATH;
  return {
    name: is_api ? `${request.method} ${url}` : null,
    context: { ...traceContextOf(request.headers), request_id: request.id },
    attributes: attributesOf(request),
  };
}

/** Of a call of another process: a part of its work, if it has any. */
export function internalWork(request: FastifyRequest): WorkOptions {
  const context = traceContextOf(request.headers);
  const name = context.traceparent === undefined ? null : `${request.method} ${request.routeOptions.url}`;
  return { name, context, attributes: attributesOf(request) };
}

function attributesOf({ method, routeOptions: { url }, params }: FastifyRequest) {
  const { id } = (params ?? {}) as Readonly<Record<string, string | undefined>>;
  return {
    'http.request.method': method,
    'http.route': url,
    'berth.instance_id': id !== undefined && isId('inst', id) ? id : null,
  };
}
