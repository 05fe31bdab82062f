/**
 * TLS from a guest: the ClientHello's name must be permitted, and the connection's destination must be an address that the resolver
 * gave this VM for that name. Then the bytes pass unchanged: guest and server have the TLS connection with each other. Only where a
 * secret of the VM names the server, secret-way.ts takes the connection.
 *
 * A VM with secrets comes here with every connection to port 443, also in mode open and to an allowed address. There any protocol passes.
 */
import type { Socket } from 'node:net';
import { type ReadHello, readClientHello } from './client-hello.ts';
import type { Guest } from './guest.ts';
import { joinTo } from './join-sockets.ts';
import type { SecretWay } from './secret-way.ts';

const HELLO_MS = 10_000;
/** A client that waits for the server's first word. */
const SILENT_MS = 3_000;
/** A fatal alert, `access_denied` (RFC 8446): clients tell it apart from a network failure. */
const ACCESS_DENIED = Buffer.from([21, 3, 1, 0, 2, 2, 49]);

export interface Destination {
  readonly address: string;
  readonly port: number;
}

export async function passTls(
  socket: Socket,
  guest: Guest,
  to: Destination,
  secrets: SecretWay,
): Promise<void> {
  const { address, port } = to;
  let name: string | null = null;
  /** A secret named the server when the connection was made. */
  let with_secret = false;
  const hasSecret = () => name !== null && guest.secretsFor(name).length > 0;
  const permitsName = () => name !== null && guest.permitsName(name, port);
  let known = false;
  const release = guest.hold({
    isPermitted: () =>
      !known || ((permitsName() || guest.permitsAddress(address, port)) && hasSecret() === with_secret),
    cut: () => socket.resetAndDestroy(),
  });
  if (!release) return void socket.resetAndDestroy();
  socket.once('close', release);
  const by_address = () => guest.permitsAddress(address, port) && !guest.isClosed(address);
  const hello = await receiveHello(socket, by_address() ? SILENT_MS : HELLO_MS);
  known = true;
  if (hello === 'gone') return void socket.destroy();
  if (!('name' in hello)) {
    if (by_address()) return void joinTo(socket, to, hello.received);
    guest.deny({ name: null, address, port });
    return void socket.resetAndDestroy();
  }
  name = hello.name;
  with_secret = hasSecret();
  const permitted =
    by_address() || (name !== null && permitsName() && (await guest.nameHas(name, address)) && permitsName());
  if (!permitted) {
    guest.deny({ name, address, port });
    socket.end(ACCESS_DENIED);
    socket.destroySoon();
    return;
  }
  if (socket.destroyed) return;
  if (with_secret && name !== null) await secrets.pass(socket, guest, { ...hello, name, to });
  else joinTo(socket, to, hello.received);
}

interface Unreadable {
  readonly received: Buffer;
}
type Received = 'gone' | Unreadable | (ReadHello & Unreadable);

/** The hello, and everything that was read for it. The socket is paused then. */
async function receiveHello(socket: Socket, silent_ms: number): Promise<Received> {
  const { promise, resolve } = Promise.withResolvers<Received>();
  let received = Buffer.alloc(0);
  const unreadable = () => {
    socket.pause();
    resolve({ received });
  };
  let late = setTimeout(unreadable, silent_ms);
  const read = (chunk: Buffer) => {
    if (received.length === 0) {
      clearTimeout(late);
      late = setTimeout(unreadable, HELLO_MS);
    }
    received = Buffer.concat([received, chunk]);
    const hello = readClientHello(received);
    if (hello === 'more') return;
    socket.pause();
    resolve(hello === 'not tls' ? { received } : { ...hello, received });
  };
  socket.on('data', read);
  const closed = () => (received.length === 0 ? resolve('gone') : unreadable());
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
