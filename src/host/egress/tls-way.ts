/**
 * TLS from a guest: the ClientHello's name must be permitted, and the connection's destination must be an address that the resolver
 * gave this VM for that name. Then the bytes pass unchanged: guest and server have the TLS connection with each other.
 */
import type { Socket } from 'node:net';
import { readClientHello } from './client-hello.ts';
import type { Guest } from './guest.ts';
import { joinTo } from './join-sockets.ts';

const HELLO_MS = 10_000;
/** A fatal alert, `access_denied` (RFC 8446): clients tell it apart from a network failure. */
const ACCESS_DENIED = Buffer.from([21, 3, 1, 0, 2, 2, 49]);

export interface Destination {
  readonly address: string;
  readonly port: number;
}

export async function passTls(socket: Socket, guest: Guest, { address, port }: Destination): Promise<void> {
  let name: string | null = null;
  const release = guest.hold({
    isPermitted: () => name === null || guest.permitsName(name, port),
    cut: () => socket.resetAndDestroy(),
  });
  if (!release) return void socket.resetAndDestroy();
  socket.once('close', release);
  const hello = await receiveHello(socket);
  if (hello === 'gone') return void socket.destroy();
  if (hello === 'not tls') {
    guest.deny({ name: null, address, port });
    return void socket.resetAndDestroy();
  }
  name = hello.name;
  const permitted =
    name !== null &&
    guest.permitsName(name, port) &&
    (await guest.nameHas(name, address)) &&
    guest.permitsName(name, port);
  if (!permitted) {
    guest.deny({ name, address, port });
    socket.end(ACCESS_DENIED);
    socket.destroySoon();
    return;
  }
  if (!socket.destroyed) joinTo(socket, { address, port }, hello.received);
}

type Received = 'gone' | 'not tls' | { readonly name: string | null; readonly received: Buffer };

/** The name, and everything that was read for it. The socket is paused then. */
async function receiveHello(socket: Socket): Promise<Received> {
  const { promise, resolve } = Promise.withResolvers<Received>();
  let received = Buffer.alloc(0);
  const late = setTimeout(() => resolve('not tls'), HELLO_MS);
  const read = (chunk: Buffer) => {
    received = Buffer.concat([received, chunk]);
    const hello = readClientHello(received);
    if (hello === 'more') return;
    socket.pause();
    resolve(hello === 'not tls' ? hello : { name: hello.name, received });
  };
  socket.on('data', read);
  const closed = () => resolve(received.length === 0 ? 'gone' : 'not tls');
  socket.once('close', closed);
  socket.once('end', closed);
  try {
    return await promise;
  } finally {
    clearTimeout(late);
    socket.off('data', read);
    socket.off('close', closed);
    socket.off('end', closed);
  }
}
