/**
 * Starts HTTP servers on loopback for tests. A server counts its connections. Closing it also ends its hanging
 * requests.
 */
import { createServer, type RequestListener, type Server } from 'node:http';
import { createServer as createTlsServer } from 'node:https';
import type { AddressInfo } from 'node:net';

export interface Receiver {
  readonly port: number;
  /** `http://127.0.0.2:1234`. */
  readonly origin: string;
  readonly connections: () => number;
  readonly close: () => Promise<void>;
}

export interface ReceiverOptions {
  readonly host?: string;
  readonly port?: number;
  readonly tls?: { readonly key: string; readonly cert: string };
}

export async function startReceiver(
  answer: RequestListener,
  options: ReceiverOptions = {},
): Promise<Receiver> {
  const { host = '127.0.0.1', tls } = options;
  const server: Server = tls ? createTlsServer(tls, answer) : createServer(answer);
  let connections = 0;
  server.on('connection', () => connections++);
  await new Promise<void>((resolve, reject) => {
    server.once('error', reject).listen({ host, port: options.port ?? 0 }, resolve);
  });
  const { port } = server.address() as AddressInfo;
  return {
    port,
    origin: `${tls ? 'https' : 'http'}://${host.includes(':') ? `[${host}]` : host}:${port}`,
    connections: () => connections,
    close: () =>
      new Promise((resolve) => {
        server.close(() => resolve());
        server.closeAllConnections();
      }),
  };
}
