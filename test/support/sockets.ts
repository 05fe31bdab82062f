/** TCP on loopback, for tests: starts servers whose behaviour a test decides, and connects to servers. */
import { once } from 'node:events';
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net';
import type { TestContext } from 'node:test';

export const HOST = '127.0.0.1';

/** A server in place of a VM's sshd. Its connections are destroyed at the end of the test. */
export async function target(t: TestContext, serve: (socket: Socket) => void): Promise<string> {
  const sockets = new Set<Socket>();
  const server = createServer({ allowHalfOpen: true }, (socket) => {
    sockets.add(socket);
    socket.on('error', () => socket.destroy());
    serve(socket);
  });
  t.after(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return `${HOST}:${await listen(server)}`;
}

export async function listen(server: Server): Promise<number> {
  server.listen(0, HOST);
  await once(server, 'listening');
  return (server.address() as AddressInfo).port;
}

/** `from`: another loopback address of this machine. */
export function dial(t: TestContext, port: number, from = HOST): Socket {
  const socket = connect({ port, host: HOST, localAddress: from, allowHalfOpen: true });
  t.after(() => socket.destroy());
  socket.on('error', () => undefined);
  return socket;
}

/** Reads until the peer ends its side. Unlike `for await`, it leaves our sending side open. */
export async function readAll(socket: Socket): Promise<Buffer> {
  const parts: Buffer[] = [];
  socket.on('data', (part: Buffer) => parts.push(part));
  await Promise.race([once(socket, 'end'), once(socket, 'close')]);
  return Buffer.concat(parts);
}

/** What an sshd says first, through an ingress. */
export async function sshGreeting(host: string, port: number): Promise<string> {
  const socket = connect({ host, port });
  try {
    // The ingress takes part of a client's words before it waits.
    socket.write('SSH-2.0-test\r\n');
    const [first] = (await once(socket, 'data', { signal: AbortSignal.timeout(10_000) })) as [Buffer];
    return String(first);
  } finally {
    socket.destroy();
  }
}
