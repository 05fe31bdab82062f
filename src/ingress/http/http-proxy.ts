/**
 * The reverse proxy for the HTTP ports of all instances. It follows their routes, passes each request to the guest that
 * its hostname names, and reports the ports' use to the control plane.
 *
 *   request ─▶ read and checked ─▶ port of its hostname ─▶ permission ─▶ connection pool ─▶ exchange with the guest
 *
 * Invariant: without permission no VM is woken, and no byte passes to the guest or from it.
 */
import type { IncomingMessage, ServerResponse } from 'node:http';
import type { Duplex, Writable } from 'node:stream';
import { BATCHES, BatchSender } from '../../protocol/batches.ts';
import type { ControlPlaneClient } from '../../protocol/client.ts';
import { type HttpRoute, STATUS_CLASSES } from '../../protocol/ingress-types.ts';
import { present } from '../../shared/assert.ts';
import { endAfterFault } from '../../shared/contain.ts';
import { messageOf } from '../../shared/errors.ts';
import { cutOff } from '../../shared/http-answer.ts';
import { valuesOf } from '../../shared/http-request.ts';
import type { HttpPortId, InstanceId } from '../../shared/ids.ts';
import type { Log } from '../../shared/log.ts';
import { pause } from '../../shared/retry.ts';
import type { HttpLimits } from '../limits.ts';
import { type RouteChange, RouteFollower } from '../route-follower.ts';
import { Exchange, forward } from './exchange.ts';
import { DialError, GuestPort, type PortUse, type Way } from './guest-port.ts';
import { type Answering, type Incoming, type ReadingOptions, readIncoming } from './incoming.ts';
import type { HttpHandlers } from './listener.ts';
import { type Asking, answerOwnPath, isOwnPath, isTlsQuestion, PortPermissions } from './permission.ts';
import { notFound, Refusal, sendRefusal, unavailable } from './refusal.ts';
import {
  checkHandshake,
  forwardUpgrade,
  type Handshaking,
  onSocket,
  onStream,
  refuseOnSocket,
} from './upgrade.ts';

const SAFE: readonly string[] = ['GET', 'HEAD', 'OPTIONS', 'TRACE'];

/**
 * For a request that the cookie let in. A browser sends the cookie of a private port also with requests that another
 * site's page makes: those may only read. @throws Refusal 403
 */
function checkOrigin({ method, raw, checked: { host } }: Incoming, { upgrade }: { upgrade: boolean }): void {
  if (SAFE.includes(method) && !upgrade) return;
  const origins = valuesOf(raw, 'origin');
  const [site] = valuesOf(raw, 'sec-fetch-site');
  const is_foreign =
    origins.length === 0
      ? site === 'cross-site' || site === 'same-site'
      : origins.some((origin) => !isOriginOf(origin, host));
  if (is_foreign) {
    throw new Refusal(
      403,
      'FORBIDDEN',
      'This request came from a page of another site, so it was not passed on.',
    );
  }
}

/** Whatever the scheme: a proxy in front may do TLS. */
function isOriginOf(origin: string, host: string): boolean {
  if (!/^https?:\/\//.test(origin) || !URL.canParse(origin)) return false;
  const { protocol, host: theirs } = new URL(origin);
  const own = `${protocol}//${host}`;
  return URL.canParse(own) && new URL(own).host === theirs;
}

const NONE: readonly number[] = STATUS_CLASSES.map(() => 0);

/** Reports to the control plane what each port was used for. What did not arrive is in the next report. */
class HttpReporter {
  readonly #client: Pick<ControlPlaneClient, 'reportHttp'>;
  readonly #ports: () => Iterable<GuestPort>;
  readonly #every_ms: number;
  readonly #sender: BatchSender<typeof BATCHES.reportHttp.item>;
  #responses = NONE;

  constructor(
    { client, log }: { readonly client: Pick<ControlPlaneClient, 'reportHttp'>; readonly log: Log },
    ports: () => Iterable<GuestPort>,
    every_ms: number,
  ) {
    this.#client = client;
    this.#ports = ports;
    this.#every_ms = every_ms;
    this.#sender = new BatchSender(BATCHES.reportHttp, log);
  }

  /** A guest can answer any status: one that is in no class is not counted. */
  count(status: number): void {
    const at = Math.floor(status / 100) - 1;
    this.#responses = this.#responses.map((count, each) => (each === at ? count + 1 : count));
  }

  async run(signal: AbortSignal): Promise<void> {
    while (await pause(this.#every_ms, signal)) await this.#report(signal);
  }

  async #report(signal: AbortSignal): Promise<void> {
    const used = [...this.#ports()].filter(({ use }) => isUsed(use));
    if (used.length === 0 && this.#responses.every((count) => count === 0)) return;
    const left = new Map(used.map((port) => [{ port_id: port.route.port_id, ...port.use }, port]));
    for (const port of used) port.use = { requests: 0, sent_bytes: 0, received_bytes: 0, last_error: null };
    let responses = this.#responses;
    this.#responses = NONE;
    try {
      await this.#sender.send([...left.keys()], {
        post: async (ports) => {
          await this.#client.reportHttp({ ports, responses }, signal);
          responses = NONE;
        },
        settled: (ports) => {
          for (const each of ports) left.delete(each);
        },
      });
    } catch {
      // The control plane does not answer.
    }
    const unsent = responses;
    this.#responses = this.#responses.map((count, at) => count + present(unsent[at], 'count of a class'));
    for (const [lost, port] of left) port.use = sum(lost, port.use);
  }
}

function isUsed({ requests, sent_bytes, received_bytes, last_error }: PortUse): boolean {
  return requests + sent_bytes + received_bytes > 0 || last_error !== null;
}

function sum(before: PortUse, now: PortUse): PortUse {
  return {
    requests: before.requests + now.requests,
    sent_bytes: before.sent_bytes + now.sent_bytes,
    received_bytes: before.received_bytes + now.received_bytes,
    last_error: now.last_error ?? before.last_error,
  };
}

/** The routes of all HTTP ports, by hostname and by instance. */
class RouteTable {
  readonly #by_hostname = new Map<string, HttpRoute>();
  readonly #by_instance = new Map<InstanceId, HttpRoute[]>();

  find(hostname: string): HttpRoute | undefined {
    return this.#by_hostname.get(hostname);
  }

  ofInstance(id: InstanceId): readonly HttpRoute[] {
    return this.#by_instance.get(id) ?? [];
  }

  /** Returns the ports that have no route any more. */
  apply({ changed, routes }: RouteChange<HttpRoute>): ReadonlySet<HttpPortId> {
    const gone = new Set<HttpPortId>();
    for (const id of changed ?? [...this.#by_instance.keys()]) {
      for (const { port_id, hostnames } of this.ofInstance(id)) {
        gone.add(port_id);
        for (const name of hostnames) {
          // Another port may have the name by now.
          if (this.#by_hostname.get(name)?.port_id === port_id) this.#by_hostname.delete(name);
        }
      }
      this.#by_instance.delete(id);
    }
    for (const route of routes) {
      gone.delete(route.port_id);
      for (const name of route.hostnames) this.#by_hostname.set(name, route);
      this.#by_instance.set(route.instance_id, [...this.ofInstance(route.instance_id), route]);
    }
    return gone;
  }
}

/** A way may be lost between its opening and its use; an exchange finds another this often. */
const WAYS_MAX = 8;
const WAY_AGAIN_MS = 100;

/** What it asks of the control plane. */
export type HttpControlPlane = Pick<
  ControlPlaneClient,
  'authoriseHttp' | 'httpRoutes' | 'openPort' | 'openTunnel' | 'redeemHttpTicket' | 'reportHttp' | 'wake'
>;

export interface HttpProxyOptions extends ReadingOptions {
  readonly client: HttpControlPlane;
  readonly limits: HttpLimits;
  readonly log: Log;
  /** A port came into use. */
  readonly active: () => void;
}

export class HttpProxy implements HttpHandlers {
  readonly #options: HttpProxyOptions;
  readonly #table = new RouteTable();
  readonly #follower: RouteFollower<HttpRoute>;
  readonly #permissions: PortPermissions;
  readonly #reporter: HttpReporter;
  readonly #ports = new Map<HttpPortId, GuestPort>();
  readonly #closing = new AbortController();
  readonly #totals = { waiting: 0 };

  constructor(options: HttpProxyOptions) {
    this.#options = options;
    const { client, limits, log } = options;
    this.#follower = new RouteFollower({
      ask: (asked, signal) => client.httpRoutes(asked, signal),
      apply: (change) => this.#update(change),
      log,
    });
    this.#permissions = new PortPermissions(client, limits);
    this.#reporter = new HttpReporter({ client, log }, () => this.#ports.values(), limits.report_ms);
  }

  /** Until `signal` aborts, which ends all exchanges. */
  async run(signal: AbortSignal): Promise<void> {
    await Promise.all([this.#follower.run(signal), this.#reporter.run(signal), this.#recheck(signal)]);
    this.close();
  }

  close(): void {
    this.#closing.abort();
    for (const port of this.#ports.values()) port.destroy();
  }

  /** For tests, in place of {@link run}. */
  apply(routes: readonly HttpRoute[]): Promise<void> {
    return this.#follower.apply({ etag: null, routes });
  }

  get ports(): Iterable<GuestPort> {
    return this.#ports.values();
  }

  readonly request = (request: IncomingMessage, response: ServerResponse): void => {
    response.on('error', () => response.destroy());
    request.on('error', () => undefined);
    response.once('finish', () => this.#reporter.count(response.statusCode));
    this.#answer(request, response)
      .catch((error: unknown) => sendRefusal(response, this.#refusalOf(error), request))
      .catch(endAfterFault(response));
  };

  readonly upgrade = (request: IncomingMessage, socket: Duplex, head: Buffer): void => {
    socket.on('error', () => socket.destroy());
    const work = async () => {
      const incoming = readIncoming(request, this.#options);
      checkHandshake(incoming);
      await this.#joinGuest(incoming, onSocket(socket, head), socket);
    };
    // A socket that nobody reads does not notice its end.
    work()
      .catch((error: unknown) => refuseOnSocket(socket, this.#refusalOf(error), request.headers.accept))
      .catch(endAfterFault(socket));
  };

  readonly connect = (request: IncomingMessage, response: ServerResponse): void => {
    response.on('error', () => response.destroy());
    const work = async () => {
      if (request.headers[':protocol'] !== 'websocket')
        throw new Refusal(405, 'INVALID_REQUEST', 'CONNECT is not served here.');
      const incoming = { ...readIncoming(request, this.#options, { method: 'GET' }), response };
      const { stream } = response as unknown as { stream: Duplex };
      stream.on('error', () => stream.destroy());
      await this.#joinGuest(incoming, onStream(incoming), stream);
    };
    work()
      .catch((error: unknown) => sendRefusal(response, this.#refusalOf(error), request))
      .catch(endAfterFault(response));
  };

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    if (isTlsQuestion(request)) return answerOwnPath.tls(request, response, (name) => this.#find(name));
    const incoming: Answering = { ...readIncoming(request, this.#options), response };
    const { route, port } = await this.#portOf(incoming);
    if (isOwnPath(incoming.target)) {
      return answerOwnPath.ticket(incoming, route, { ...this.#options });
    }
    const asking = await this.#permit(incoming, route, { upgrade: false });
    const exchange = new Exchange(asking, () => cutOff(response));
    const { limits } = this.#options;
    await this.#withWay(port, exchange, { gone: goneSignal(response), incoming }, (way) =>
      forward(incoming, way, { port, exchange, limits }),
    );
  }

  async #joinGuest(incoming: Incoming, side: Handshaking, client: Duplex): Promise<void> {
    const { route, port } = await this.#portOf(incoming);
    if (isOwnPath(incoming.target)) throw notFound();
    const asking = await this.#permit(incoming, route, { upgrade: true });
    const exchange = new Exchange(asking, () => client.destroy());
    const gone = goneSignal(client);
    const { limits } = this.#options;
    await this.#withWay(port, exchange, { gone, incoming }, (way) =>
      forwardUpgrade(incoming, way, side, { port, exchange, limits, gone }),
    );
  }

  /** Sends the exchange on the way into the guest, or another if that was lost before a byte was sent. */
  async #withWay(
    port: GuestPort,
    exchange: Exchange,
    { gone }: { gone: AbortSignal; incoming: Incoming },
    send: (way: Way) => Promise<void>,
  ): Promise<void> {
    if (this.#exchangesOf(port) >= this.#options.limits.exchanges_per_instance)
      throw unavailable('This VM has too many requests under way. Try again shortly.');
    port.begin(exchange);
    try {
      for (let tries = 1; ; tries++) {
        const way = await port.way(gone);
        try {
          return await send(way);
        } catch (error) {
          if (!(error instanceof DialError) || tries === WAYS_MAX) throw error;
          port.lost(way);
          await pause(WAY_AGAIN_MS, gone);
        }
      }
    } catch (error) {
      const refusal = this.#refusalOf(error);
      if (!gone.aborted) port.noteError(refusal);
      throw refusal;
    } finally {
      port.end(exchange);
    }
  }

  #exchangesOf({ route: { instance_id } }: GuestPort): number {
    const sizes = this.#table
      .ofInstance(instance_id)
      .map(({ port_id }) => this.#ports.get(port_id)?.exchanges.size ?? 0);
    return sizes.reduce((sum, size) => sum + size, 0);
  }

  async #permit(incoming: Incoming, route: HttpRoute, { upgrade }: { upgrade: boolean }): Promise<Asking> {
    const { checked, client, credential } = incoming;
    const asking = { hostname: checked.hostname, address: client.address, credential };
    const by = await this.#permissions.require(route, asking);
    if (by === 'cookie') checkOrigin(incoming, { upgrade });
    return asking;
  }

  async #portOf({ checked: { hostname } }: Incoming): Promise<{ route: HttpRoute; port: GuestPort }> {
    const route = await this.#find(hostname);
    const port = route && this.#ports.get(route.port_id);
    if (!port) throw notFound();
    return { route, port };
  }

  async #find(hostname: string): Promise<HttpRoute | undefined> {
    const known = this.#table.find(hostname);
    if (known) return known;
    await this.#follower.refresh();
    return this.#table.find(hostname);
  }

  #update(change: RouteChange<HttpRoute>): void {
    for (const id of this.#table.apply(change)) {
      this.#ports.get(id)?.destroy();
      this.#ports.delete(id);
    }
    const { client, limits, log, active } = this.#options;
    for (const route of change.routes) {
      const port = this.#ports.get(route.port_id);
      if (port) port.update(route);
      else
        this.#ports.set(
          route.port_id,
          new GuestPort(route, {
            ...{ client, limits, log, active, totals: this.#totals, closing: this.#closing.signal },
            refresh: () => this.#follower.refresh(),
          }),
        );
    }
  }

  /** Ends exchanges whose client has lost its access. */
  async #recheck(signal: AbortSignal): Promise<void> {
    const { recheck_ms, unconfirmed_ms } = this.#options.limits;
    while (await pause(recheck_ms, signal)) {
      for (const port of this.#ports.values()) {
        if (port.route.access === 'public') continue;
        for (const exchange of port.exchanges) {
          void this.#permissions.isAllowed(port.route, exchange.asking).then((allowed) => {
            const now_ms = performance.now();
            if (allowed) exchange.confirmed_ms = now_ms;
            else if (allowed === false || now_ms - exchange.confirmed_ms > unconfirmed_ms) exchange.end();
          });
        }
      }
    }
  }

  #refusalOf(error: unknown): Refusal {
    if (error instanceof Refusal) return error;
    if (error instanceof DialError) return unavailable('The VM cannot be reached at the moment.');
    const refusal = unavailable('Berth could not pass the request on. Try again shortly.');
    if (!(error instanceof Error && error.name === 'AbortError')) {
      const { request_id } = refusal;
      this.#options.log.warn({ request_id, reason: messageOf(error) }, 'an HTTP request failed');
    }
    return refusal;
  }
}

function goneSignal(client: Writable): AbortSignal {
  const gone = new AbortController();
  client.once('close', () => {
    // Node ends a response by HTTP/2 itself when its stream is cancelled.
    if (!client.writableEnded || !client.writableFinished) gone.abort();
  });
  return gone.signal;
}
