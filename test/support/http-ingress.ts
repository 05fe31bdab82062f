/**
 * Runs the proxy of HTTP ports with a control plane that a test scripts, and with servers of the test in place of
 * guests.
 */

import { once } from 'node:events';
import { createServer, type IncomingMessage, type RequestListener, type Server } from 'node:http';
import { type AddressInfo, connect, createServer as createTcp, type Socket } from 'node:net';
import { type HttpControlPlane, HttpProxy } from '../../src/ingress/http/http-proxy.ts';
import { type Certificate, HttpListener } from '../../src/ingress/http/listener.ts';
import { HTTP_LIMITS, type HttpLimits } from '../../src/ingress/limits.ts';
import { RequestRefused } from '../../src/protocol/client.ts';
import {
  type AuthoriseHttpRequest,
  type AuthoriseHttpResponse,
  HttpReport,
  type HttpRoute,
} from '../../src/protocol/ingress-types.ts';
import { violationOf } from '../../src/protocol/schemas.ts';
import { newId } from '../../src/shared/ids.ts';
import { createLog } from '../../src/shared/log.ts';
import { TrustedProxies } from '../../src/shared/networks.ts';
import type { Cleanup } from './cleanup.ts';
import { HOST } from './sockets.ts';

export const NAME = 'web-abcdefgh.localhost';

export interface Scripted {
  /** The address of a guest's port; null: nothing listens. */
  readonly address: () => string | null;
  readonly authorise?: (
    asked: AuthoriseHttpRequest,
  ) => AuthoriseHttpResponse | Promise<AuthoriseHttpResponse>;
  readonly wake?: () => void;
  readonly redeem?: (ticket: string) => string | null;
}

export interface ProxyUnderTest {
  readonly port: number;
  readonly origin: string;
  readonly proxy: HttpProxy;
  readonly route: HttpRoute;
  /** Those that a control plane accepts. */
  readonly reports: readonly HttpReport[];
  /** Replaces the only route. */
  apply(change: Partial<HttpRoute>): void;
}

export function httpRoute(change: Partial<HttpRoute> = {}): HttpRoute {
  return {
    ...{ port_id: newId('port'), instance_id: newId('inst'), hostnames: [NAME], port: 8080 },
    ...{ access: 'public', target: 'local', resets: 0, wake: false },
    ...change,
  };
}

export async function proxyTo(
  t: Cleanup,
  scripted: Scripted,
  options: {
    route?: Partial<HttpRoute>;
    limits?: Partial<HttpLimits>;
    tls?: Certificate;
    trusted?: string[];
  } = {},
): Promise<ProxyUnderTest> {
  const reports: HttpReport[] = [];
  const ended = new AbortController();
  const pause = (signal?: AbortSignal) =>
    new Promise<never>((_resolve, reject) => {
      AbortSignal.any([...(signal ? [signal] : []), ended.signal]).addEventListener('abort', () =>
        reject(new Error('over')),
      );
    });
  const client: HttpControlPlane = {
    httpRoutes: async ({ seen }: { seen: string | null }, signal: AbortSignal) =>
      seen === 'now' ? pause(signal) : { etag: 'now', routes: [route] },
    openPort: async () => {
      const address = scripted.address();
      return address === null ? { outcome: 'not_listening' } : { outcome: 'open', address };
    },
    openTunnel: async () => connect(Number(scripted.address()?.split(':')[1]), HOST),
    authoriseHttp: async (asked: AuthoriseHttpRequest) =>
      scripted.authorise?.(asked) ?? { outcome: 'unauthenticated' },
    redeemHttpTicket: async ({ ticket }: { ticket: string }) => {
      const cookie = scripted.redeem?.(ticket) ?? null;
      return cookie === null
        ? { outcome: 'refused' }
        : { outcome: 'redeemed', cookie, max_age_seconds: 43_200 };
    },
    reportHttp: async (report: HttpReport) => {
      const problem = violationOf(HttpReport, report);
      if (problem !== null) throw new RequestRefused(problem);
      reports.push(report);
    },
    wake: async () => {
      scripted.wake?.();
      return { outcome: 'coming' };
    },
  };
  let route = httpRoute(options.route);
  const limits = { ...HTTP_LIMITS, ...options.limits };
  const proxy = new HttpProxy({
    ...{ client, limits, log: createLog('test', 'silent'), active: () => undefined },
    ...{ secure: options.tls !== undefined },
    trusted: new TrustedProxies(
      (options.trusted ?? []).map((address) => ({ address, prefix: 32, family: 'ipv4' })),
    ),
  });
  proxy.apply([route]);
  const running = proxy.run(ended.signal);
  const listener = new HttpListener(options.tls ?? null, proxy, limits);
  await listener.listen(HOST, 0);
  t.after(async () => {
    ended.abort();
    listener.destroy();
    await running;
  });
  return {
    ...{ port: listener.port, proxy, reports, route },
    origin: `${options.tls ? 'https' : 'http'}://${HOST}:${listener.port}`,
    apply: (change) => {
      route = { ...route, ...change };
      proxy.apply([route]);
    },
  };
}

/** An HTTP server in place of a guest's. Returns its address. */
export async function guestServer(
  t: Cleanup,
  serve: RequestListener,
  more: (server: Server) => void = () => undefined,
): Promise<string> {
  const server = createServer(serve);
  more(server);
  server.listen(0, HOST);
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return `${HOST}:${(server.address() as AddressInfo).port}`;
}

/** A server that answers each connection's first bytes with `answer`, and keeps what it heard. */
export async function rawGuest(t: Cleanup, answer: (socket: Socket, heard: string) => void): Promise<string> {
  const sockets = new Set<Socket>();
  const server = createTcp((socket) => {
    sockets.add(socket);
    socket.on('error', () => socket.destroy());
    socket.on('data', (data) => answer(socket, String(data)));
  });
  server.listen(0, HOST);
  await once(server, 'listening');
  t.after(() => {
    for (const each of sockets) each.destroy();
    server.close();
  });
  return `${HOST}:${(server.address() as AddressInfo).port}`;
}

/** Sends bytes as they are, and returns all that comes until the end, or until `enough`. */
export async function sendRaw(
  port: number,
  bytes: string,
  enough: (heard: string) => boolean = () => false,
): Promise<string> {
  const socket = connect(port, HOST);
  socket.on('error', () => undefined);
  socket.write(Buffer.from(bytes, 'latin1'));
  let heard = '';
  socket.on('data', (data: Buffer) => {
    heard += data.toString('latin1');
    if (enough(heard)) socket.destroy();
  });
  await once(socket, 'close');
  return heard;
}

/** What a guest tells of a request: everything that reached it. */
export function tellAll(request: IncomingMessage, body: string): string {
  const { method, url, rawHeaders: fields, rawTrailers: trailers } = request;
  return JSON.stringify({ method, url, fields, trailers, body });
}
