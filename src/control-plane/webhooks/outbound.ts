/**
 * Sends requests to receivers of webhooks: decides which URLs and addresses are allowed, and what is kept of an answer.
 * Nothing else in the process sends requests to receivers.
 *
 * - A name is resolved once. Each address is checked, and only checked addresses are dialled.
 * - A redirect is an answer: it is not followed.
 * - A request ends after `timeout_ms`, however slowly bytes arrive. At most 64 KiB of a body are read.
 * - {@link Outbound.post} never rejects.
 */
import { Resolver } from 'node:dns/promises';
import { readFile } from 'node:fs/promises';
import { isIP, type LookupFunction } from 'node:net';
import { performance } from 'node:perf_hooks';
import ipaddr from 'ipaddr.js';
import { Agent, buildConnector, type Dispatcher, errors } from 'undici';
import { errnoOf, invalid } from '../../shared/errors.ts';

// The addresses that a webhook may reach: global unicast only. The policy refuses loopback, private, shared, link-local,
// metadata, multicast and reserved addresses, and those that embed an IPv4 address (mapped, NAT64, 6to4, Teredo,
// ISATAP). Networks that the operator allows are the one exception, and the only ones that may be reached without TLS.
// The policy is applied when a webhook is created and to each address that is dialled.

/** A network of BERTH_WEBHOOK_ALLOW_CIDRS. */
export interface Network {
  readonly address: string;
  readonly prefix: number;
}

export type Protocol = 'https:' | 'http:';

/** Why `address`, in the notation of node:net, may not be reached; null when it may. */
export function refusal(address: string, protocol: Protocol, allow: readonly Network[]): string | null {
  // ipaddr.js accepts more notations than node:net; a scope (fe80::1%eth0) names an interface of this machine.
  if (isIP(address) === 0 || address.includes('%')) return 'is no address that a webhook may reach';
  const parsed = ipaddr.parse(address);
  if (allow.some((network) => contains(network, parsed))) return null;
  if (protocol === 'http:') return 'is not in a network that may be reached without TLS';
  return isPublic(parsed) ? null : 'is not a public address';
}

function contains(network: Network, address: ipaddr.IPv4 | ipaddr.IPv6): boolean {
  const base = ipaddr.parse(network.address);
  return base.kind() === address.kind() && address.match(base, network.prefix);
}

/** Azure's metadata service has a public address. */
const AZURE_WIRE_SERVER = '168.63.129.16';
/** The only allocated range of IPv6; it excludes ::/96, NAT64 and future reservations. */
const GLOBAL_UNICAST = ipaddr.IPv6.parseCIDR('2000::/3');

function isPublic(address: ipaddr.IPv4 | ipaddr.IPv6): boolean {
  if (address.range() !== 'unicast') return false;
  if (address instanceof ipaddr.IPv4) return address.toString() !== AZURE_WIRE_SERVER;
  return address.match(...GLOBAL_UNICAST) && !isIsatap(address);
}

/** RFC 5214: the interface identifier is 0000:5efe or 0200:5efe and an IPv4 address. */
function isIsatap({ parts }: ipaddr.IPv6): boolean {
  return (parts[4] === 0 || parts[4] === 0x200) && parts[5] === 0x5efe;
}

const MAX_URL_LENGTH = 2048;

/**
 * Checks the text of a webhook's URL: https (http only if the operator allows networks), no user, no fragment, no forbidden
 * literal address. The URL parser normalises notations first: `2130706433`, `0x7f.1` and `017700000001` are 127.0.0.1.
 * @throws AppError INVALID_REQUEST about `url`
 */
export function checkUrl(text: string, allow: readonly Network[]): URL {
  // The parser would drop or encode these silently.
  // biome-ignore lint/suspicious/noControlCharactersInRegex: it refuses them
  if (/[\u0000-\u0020\u007f]/.test(text))
    throw invalid('url', 'must have no space or control character in it');
  const url = URL.parse(text);
  if (url === null) throw invalid('url', 'must be a whole address such as https://example.org/hook');
  if (text.length > MAX_URL_LENGTH || url.href.length > MAX_URL_LENGTH) {
    throw invalid('url', `must have at most ${MAX_URL_LENGTH} characters`);
  }
  const protocol = schemeOf(url);
  if (protocol === null) throw invalid('url', 'must begin with https://');
  if (url.username !== '' || url.password !== '') throw invalid('url', 'must hold no user or password');
  if (text.includes('#')) throw invalid('url', 'must have no fragment (#…): it would never be sent');
  if (url.port === '0') throw invalid('url', 'must have a port from 1 to 65535');
  if (protocol === 'http:' && allow.length === 0) throw invalid('url', 'must begin with https://');
  const literal = literalOf(url);
  const reason = literal === null ? null : refusal(literal, protocol, allow);
  if (reason !== null) throw invalid('url', `its address ${reason}`);
  return url;
}

function schemeOf({ protocol }: URL): Protocol | null {
  return protocol === 'https:' || protocol === 'http:' ? protocol : null;
}

/** The address in the URL, without brackets; null when its host is a name. */
function literalOf({ hostname }: URL): string | null {
  const bare = hostname.replace(/^\[(.*)\]$/, '$1');
  return isIP(bare) === 0 ? null : bare;
}

// Resolves names for `Outbound`, the hosts file first. Uses c-ares: getaddrinfo would block one of libuv's four
// threads for each name whose server is silent, and with them every file operation of the process.

/** All addresses of a name; @throws NameUnknown */
export type Resolve = (name: string) => Promise<readonly string[]>;

class NameUnknown extends Error {
  override name = 'NameUnknown';
}

const QUERY_TIMEOUT_MS = 2_000;
const TRIES = 2;
/** A name with more addresses is refused. */
const MAX_ADDRESSES = 32;

/** @param servers name servers (`ADDRESS:PORT`) instead of the machine's */
export function createResolve(servers?: readonly string[]): Resolve {
  const resolver = new Resolver({ timeout: QUERY_TIMEOUT_MS, tries: TRIES });
  if (servers) resolver.setServers(servers);
  return async (name) => {
    const bare = name.toLowerCase().replace(/\.$/, '');
    const fixed = await fromHosts(bare);
    if (fixed.length > 0) return fixed;
    // Not for name servers (RFC 6761).
    if (bare === 'localhost' || bare.endsWith('.localhost')) return ['127.0.0.1', '::1'];
    const found = await Promise.allSettled([resolver.resolve4(bare), resolver.resolve6(bare)]);
    const addresses = found.flatMap((each) => (each.status === 'fulfilled' ? each.value : []));
    if (addresses.length === 0 || addresses.length > MAX_ADDRESSES) {
      throw new NameUnknown(addresses.length === 0 ? 'no address' : 'too many addresses');
    }
    return addresses;
  };
}

async function fromHosts(name: string): Promise<string[]> {
  const text = await readFile('/etc/hosts', 'utf8').catch(() => '');
  return text.split('\n').flatMap((line) => {
    const [address = '', ...names] = line.replace(/#.*/, '').trim().split(/\s+/);
    return isIP(address) !== 0 && names.some((each) => each.toLowerCase() === name) ? [address] : [];
  });
}

/** Of the body, in bytes of UTF-8. */
export const KEPT_BYTES = 4096;
/** Of the headers, in bytes of UTF-8. */
export const KEPT_HEADER_BYTES = 2048;
/** The most that `Retry-After` may ask for. */
export const MAX_RETRY_AFTER_SECONDS = 7 * 24 * 3600;

/** The body as text for a database and a page: valid UTF-8, no control characters but tab and newline, at most 4 KiB. */
export function printable(chunks: readonly Uint8Array[]): string {
  if (chunks.length === 0) return '';
  // `stream` leaves out a character that is cut in two at the end; invalid bytes become U+FFFD.
  const text = new TextDecoder('utf-8', { ignoreBOM: true }).decode(
    Buffer.concat(chunks).subarray(0, KEPT_BYTES),
    { stream: true },
  );
  // biome-ignore lint/suspicious/noControlCharactersInRegex: it replaces them
  const clean = text.replace(/\r\n?/g, '\n').replace(/[\u0000-\u0008\u000b-\u001f\u007f-\u009f]/g, '\ufffd');
  // U+FFFD takes three bytes for each that it replaces.
  const bytes = Buffer.from(clean);
  if (bytes.length <= KEPT_BYTES) return clean;
  return new TextDecoder('utf-8').decode(bytes.subarray(0, KEPT_BYTES), { stream: true });
}

/** The first headers, up to 2 KiB, without control characters. A cookie is a credential of the receiver: it is left out. */
export function keptHeaders(
  headers: Readonly<Record<string, string | string[] | undefined>>,
): Record<string, string> {
  const kept: [string, string][] = [];
  let bytes = 0;
  for (const [name, value] of Object.entries(headers)) {
    if (value === undefined || name === 'set-cookie') continue;
    const text = (Array.isArray(value) ? value.join(', ') : value)
      // biome-ignore lint/suspicious/noControlCharactersInRegex: it replaces them
      .replace(/[\u0000-\u001f\u007f-\u009f]/g, '\ufffd')
      .toWellFormed();
    bytes += Buffer.byteLength(name) + Buffer.byteLength(text);
    if (bytes > KEPT_HEADER_BYTES) break;
    kept.push([name, text]);
  }
  return Object.fromEntries(kept);
}

/** Seconds or an HTTP date (RFC 9110); null for anything else. */
export function retryAfterSeconds(header: string | string[] | undefined, now_ms: number): number | null {
  const text = (Array.isArray(header) ? header[0] : header)?.trim() ?? '';
  const seconds = /^[0-9]{1,10}$/.test(text)
    ? Number(text)
    : / GMT$/.test(text)
      ? Math.ceil((Date.parse(text) - now_ms) / 1000)
      : Number.NaN;
  return Number.isNaN(seconds) ? null : Math.min(Math.max(seconds, 0), MAX_RETRY_AFTER_SECONDS);
}

// The failure of a request, described for the owner of the webhook. A text never has an address that a name resolved to:
// it may be internal to the operator.

/** The policy refused an address; nothing was sent. */
class AddressRefused extends Error {
  override name = 'AddressRefused';
}

const TEXTS: Readonly<Record<string, string>> = {
  ECONNREFUSED: 'the connection was refused',
  ECONNRESET: 'the connection was closed before the answer',
  EPIPE: 'the connection was closed before the answer',
  UND_ERR_SOCKET: 'the connection was closed before the answer',
  EHOSTUNREACH: 'the host cannot be reached',
  ENETUNREACH: 'the network cannot be reached',
  ETIMEDOUT: 'the connection timed out',
  UND_ERR_CONNECT_TIMEOUT: 'the connection timed out',
  UND_ERR_DESTROYED: 'the request was given up',
  UND_ERR_HEADERS_OVERFLOW: 'the headers of the answer are too large',
  DEPTH_ZERO_SELF_SIGNED_CERT: 'TLS: the certificate is self-signed',
  SELF_SIGNED_CERT_IN_CHAIN: 'TLS: a certificate of the chain is self-signed and not trusted',
  UNABLE_TO_VERIFY_LEAF_SIGNATURE: 'TLS: the certificate is of no trusted authority',
  UNABLE_TO_GET_ISSUER_CERT_LOCALLY: 'TLS: the certificate is of no trusted authority',
  CERT_HAS_EXPIRED: 'TLS: the certificate has expired',
  CERT_NOT_YET_VALID: 'TLS: the certificate is not valid yet',
  ERR_TLS_CERT_ALTNAME_INVALID: 'TLS: the certificate is for another name',
};

function failureText(thrown: unknown): string {
  if (thrown instanceof AddressRefused) return thrown.message;
  if (thrown instanceof NameUnknown) return 'the name does not resolve';
  // Several addresses were tried; the first failure stands for all.
  if (thrown instanceof AggregateError && thrown.errors.length > 0) return failureText(thrown.errors[0]);
  const code = errnoOf(thrown) ?? '';
  const text = TEXTS[code];
  if (text !== undefined) return text;
  if (thrown instanceof errors.HTTPParserError) return 'the answer is not HTTP/1.1';
  if (code.startsWith('ERR_SSL_') || code.startsWith('ERR_TLS_') || code === 'EPROTO') {
    return 'TLS: the handshake failed';
  }
  return 'the request failed';
}

export interface OutboundOptions {
  /** BERTH_WEBHOOK_ALLOW_CIDRS. */
  readonly allow_cidrs: readonly Network[];
  /** Of a whole request, its answer included. */
  readonly timeout_ms?: number;
  readonly resolve?: Resolve;
}

/** One of `status` and `error` is null, the other is not. */
export interface Answer {
  /** Of an answer that ended, or that was cut off after {@link READ_BYTES}. */
  readonly status: number | null;
  /** Why there is no answer, for the owner of the webhook. */
  readonly error: string | null;
  /** The beginning of the body: valid UTF-8 of at most 4 KiB, without control characters. */
  readonly response: string;
  /** Of the answer: at most 2 KiB, without cookies. */
  readonly response_headers: Readonly<Record<string, string>>;
  readonly latency_ms: number;
  /** At most a week. */
  readonly retry_after_seconds: number | null;
}

interface RequestTarget {
  readonly origin: string;
  readonly path: string;
}

export const TIMEOUT_MS = 15_000;
/** A body up to this is read to its end, so its connection is reused; a longer one is cut off, with its connection. */
const READ_BYTES = 64 * 1024;
const MAX_HEADER_BYTES = 16 * 1024;
const IDLE_MS = 4_000;
const MAX_IDLE_MS = 30_000;
/** How long each of several addresses is tried. */
const ATTEMPT_MS = 2_000;
/** How long {@link Outbound.checkUrl} waits for a name server. */
const CHECK_MS = 3_000;

export class Outbound {
  readonly #allow: readonly Network[];
  readonly #timeout_ms: number;
  readonly #resolve: Resolve;
  readonly #agent: Agent;
  readonly #targets = new WeakMap<URL, RequestTarget | null>();
  /** By the signal that aborts them. */
  readonly #in_flight = new WeakMap<AbortSignal, Set<Exchange>>();

  constructor(options: OutboundOptions) {
    this.#allow = options.allow_cidrs;
    this.#timeout_ms = options.timeout_ms ?? TIMEOUT_MS;
    this.#resolve = options.resolve ?? createResolve();
    this.#agent = new Agent({
      connect: this.#connector(),
      connectTimeout: this.#timeout_ms,
      // `post` has a timeout for the whole request; these are for pauses within it.
      headersTimeout: 0,
      bodyTimeout: 0,
      maxHeaderSize: MAX_HEADER_BYTES,
      keepAliveTimeout: IDLE_MS,
      keepAliveMaxTimeout: MAX_IDLE_MS,
      pipelining: 1,
      // HTTP/2 would let a receiver limit the streams, and requests to one origin would wait for each other.
      allowH2: false,
    });
  }

  /**
   * Checks the URL of a webhook. A name that does not resolve yet is accepted.
   * @throws AppError INVALID_REQUEST about `url`
   */
  async checkUrl(text: string): Promise<URL> {
    const url = checkUrl(text, this.#allow);
    const protocol = schemeOf(url);
    if (protocol === null || literalOf(url) !== null) return url;
    for (const address of await this.#addressesSoon(url.hostname)) {
      const reason = refusal(address, protocol, this.#allow);
      if (reason !== null) throw invalid('url', `the address of its host ${reason}`);
    }
    return url;
  }

  /**
   * @param url is not changed by the caller later
   * @param headers in lower case
   * @param signal ends the request early, as a failure
   */
  post(
    url: URL | string,
    headers: Readonly<Record<string, string>>,
    body: string,
    signal?: AbortSignal,
  ): Promise<Answer> {
    return new Promise((resolve) => {
      const exchange = new Exchange(this.#timeout_ms, resolve, signal && this.#abortedBy(signal));
      if (signal?.aborted) exchange.giveUp();
      const parsed = typeof url === 'string' ? URL.parse(url) : url;
      const target = parsed && this.#targetOf(parsed);
      if (target === null) {
        exchange.fail('the URL cannot be used');
        return;
      }
      try {
        this.#agent.dispatch({ ...target, method: 'POST', headers, body }, exchange);
      } catch (error) {
        exchange.fail(failureText(error));
      }
    });
  }

  /** Ends the requests in flight, as failures. */
  async close(): Promise<void> {
    await this.#agent.destroy();
  }

  /** Null if its protocol can't be used. Kept by URL: parsing its parts for each request would cost more than the request. */
  #targetOf(url: URL): RequestTarget | null {
    const known = this.#targets.get(url);
    if (known !== undefined) return known;
    const target = schemeOf(url) === null ? null : { origin: url.origin, path: url.pathname + url.search };
    this.#targets.set(url, target);
    return target;
  }

  /** The requests in flight that `signal` aborts: one listener for all of them. */
  #abortedBy(signal: AbortSignal): Set<Exchange> {
    const known = this.#in_flight.get(signal);
    if (known) return known;
    const exchanges = new Set<Exchange>();
    const abort = () => {
      for (const exchange of exchanges) exchange.giveUp();
    };
    signal.addEventListener('abort', abort, { once: true });
    this.#in_flight.set(signal, exchanges);
    return exchanges;
  }

  async #addressesSoon(name: string): Promise<readonly string[]> {
    const { promise: late, resolve: giveUp } = Promise.withResolvers<readonly string[]>();
    const timer = setTimeout(giveUp, CHECK_MS, []);
    const found = this.#resolve(name).catch((error: unknown) => {
      if (error instanceof NameUnknown) return [];
      throw error;
    });
    return Promise.race([found, late]).finally(() => clearTimeout(timer));
  }

  /** undici's connector, with a `lookup` that yields checked addresses only. */
  #connector(): buildConnector.connector {
    const connectors = { 'https:': this.#connectorFor('https:'), 'http:': this.#connectorFor('http:') };
    return (options, callback) => {
      const protocol: Protocol = options.protocol === 'http:' ? 'http:' : 'https:';
      const reason = isIP(options.hostname) === 0 ? null : refusal(options.hostname, protocol, this.#allow);
      if (reason !== null) {
        callback(new AddressRefused(`the address ${reason}`), null);
        return;
      }
      connectors[protocol](options, callback);
    };
  }

  #connectorFor(protocol: Protocol): buildConnector.connector {
    const lookup: LookupFunction = (name, { all }, callback) => {
      this.#checkedAddresses(name, protocol).then(
        (addresses) => {
          const found = addresses.map((address) => ({ address, family: isIP(address) }));
          const [first] = found;
          if (all) callback(null, found);
          else callback(null, first?.address ?? '', first?.family ?? 0);
        },
        (error: Error) => callback(error, ''),
      );
    };
    return buildConnector({
      lookup,
      timeout: this.#timeout_ms,
      allowH2: false,
      autoSelectFamily: true,
      autoSelectFamilyAttemptTimeout: ATTEMPT_MS,
    });
  }

  /** One forbidden address refuses the name: mixing them is an attack. */
  async #checkedAddresses(name: string, protocol: Protocol): Promise<readonly string[]> {
    const addresses = await this.#resolve(name);
    for (const address of addresses) {
      const reason = refusal(address, protocol, this.#allow);
      if (reason !== null) throw new AddressRefused(`the address of the host ${reason}`);
    }
    return addresses;
  }
}

/** One request and its answer; settled once. */
class Exchange implements Dispatcher.DispatchHandler {
  readonly #began_ms = performance.now();
  readonly #settle: (answer: Answer) => void;
  readonly #in_flight: Set<Exchange> | undefined;
  readonly #timer: NodeJS.Timeout;
  #controller: Dispatcher.DispatchController | undefined;
  #settled = false;
  #status = 0;
  #retry_after_seconds: number | null = null;
  #headers: Readonly<Record<string, string>> = {};
  readonly #chunks: Buffer[] = [];
  #kept_bytes = 0;
  #read_bytes = 0;

  /** @param in_flight has this exchange until it ends */
  constructor(timeout_ms: number, settle: (answer: Answer) => void, in_flight: Set<Exchange> | undefined) {
    this.#settle = settle;
    this.#in_flight = in_flight;
    in_flight?.add(this);
    this.#timer = setTimeout(() => {
      const what = this.#status === 0 ? 'no answer' : 'the answer did not end';
      this.fail(`${what} within ${timeout_ms / 1000} s`);
    }, timeout_ms);
  }

  onRequestStart(controller: Dispatcher.DispatchController): void {
    this.#controller = controller;
    // The connection was established after the end of the exchange.
    if (this.#settled) controller.abort(new Error('settled'));
  }

  onResponseStart(_: Dispatcher.DispatchController, status: number, headers: Headers): void {
    // 1xx come before the answer.
    if (status < 200) return;
    this.#status = status;
    this.#retry_after_seconds = retryAfterSeconds(headers['retry-after'], Date.now());
    this.#headers = keptHeaders(headers);
  }

  onResponseData(_: Dispatcher.DispatchController, chunk: Buffer): void {
    this.#read_bytes += chunk.length;
    const room = KEPT_BYTES - this.#kept_bytes;
    if (room > 0) {
      // A copy: a slice would keep the parser's whole buffer alive.
      this.#chunks.push(Buffer.from(chunk.subarray(0, room)));
      this.#kept_bytes += Math.min(room, chunk.length);
    }
    if (this.#read_bytes > READ_BYTES) this.#end(this.#status, null);
  }

  onResponseEnd(): void {
    this.#end(this.#status, null, true);
  }

  onResponseError(_: Dispatcher.DispatchController, error: Error): void {
    this.#end(null, failureText(error), true);
  }

  giveUp(): void {
    this.fail('the request was given up');
  }

  fail(error: string): void {
    this.#end(null, error);
  }

  #end(status: number | null, error: string | null, over = false): void {
    if (this.#settled) return;
    this.#settled = true;
    clearTimeout(this.#timer);
    this.#in_flight?.delete(this);
    if (!over) this.#controller?.abort(new Error('settled'));
    this.#settle({
      status,
      error,
      response: printable(this.#chunks),
      response_headers: this.#headers,
      latency_ms: Math.round(performance.now() - this.#began_ms),
      retry_after_seconds: this.#retry_after_seconds,
    });
  }
}

type Headers = Record<string, string | string[] | undefined>;
