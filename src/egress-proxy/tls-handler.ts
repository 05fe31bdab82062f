/**
 * Handles guests' connections to port 443. The VM's policy must permit the server name in the ClientHello, and the
 * connection's destination must be an address that the resolver gave this VM for that name. The bytes then pass
 * unchanged: the TLS connection is between guest and server. Only if a secret of the VM names the server,
 * secret-handler.ts takes the connection over.
 *
 * Every connection of a VM with secrets to port 443 comes here, also with unrestricted egress (mode open), and to
 * addresses that the policy allows. To these addresses any protocol passes.
 */
import type { Socket } from 'node:net';
import { type Destination, joinTo } from './address-handler.ts';
import {
  asksForRetry,
  type Hello,
  type ReadHello,
  readClientHello,
  readRetriedHello,
} from './client-hello.ts';
import type { ProxiedGuest } from './proxied-guest.ts';
import type { SecretHandler } from './secret-handler.ts';

const HELLO_MS = 10_000;
const ANSWER_MS = 30_000;
/** A client that waits for the server's first word. */
const SILENT_MS = 3_000;
/** A fatal alert, `access_denied` (RFC 8446): clients tell it apart from a network failure. */
const ACCESS_DENIED = Buffer.from([21, 3, 1, 0, 2, 2, 49]);

export async function passTls(
  socket: Socket,
  guest: ProxiedGuest,
  to: Destination,
  secrets: SecretHandler,
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
    return refuse(socket);
  }
  if (socket.destroyed) return;
  if (with_secret && name !== null) return secrets.pass(socket, guest, { ...hello, name, to });
  if (by_address()) return void joinTo(socket, to, hello.received);
  const behind = hello.received.subarray(hello.bytes);
  joinTo(socket, to, hello.received.subarray(0, hello.bytes), async (outside) => {
    const other = await passBehindHello(socket, outside, behind, name);
    if (other === null) return true;
    guest.deny({ name: other.name, address, port });
    refuse(socket);
    return false;
  });
}

function refuse(socket: Socket): void {
  socket.end(ACCESS_DENIED);
  socket.destroySoon();
}

/**
 * Passes what stands behind the hello. Servers go by the last hello, so that which answers a HelloRetryRequest must have the name of the
 * first, and nothing passes before the server has said whether it asks for one. Returns a hello with another name.
 */
async function passBehindHello(
  inside: Socket,
  outside: Socket,
  behind: Buffer,
  name: string | null,
): Promise<{ readonly name: string | null } | null> {
  if (!(await isRetryAsked(outside))) {
    outside.write(behind);
    return null;
  }
  const retried = await receiveHello(inside, HELLO_MS, { received: behind, read: readRetriedHello });
  if (retried === 'gone') return null;
  if (!('name' in retried)) return { name: null };
  if (retried.name !== name) return retried;
  outside.write(retried.received);
  return null;
}

async function isRetryAsked(outside: Socket): Promise<boolean> {
  const { promise, resolve } = Promise.withResolvers<boolean>();
  let said = Buffer.alloc(0);
  const hear = (chunk: Buffer) => {
    said = Buffer.concat([said, chunk]);
    const asked = asksForRetry(said);
    if (asked !== 'more') resolve(asked);
  };
  const late = setTimeout(() => outside.destroy(), ANSWER_MS);
  const closed = () => resolve(false);
  outside.on('data', hear);
  outside.once('close', closed);
  try {
    return await promise;
  } finally {
    clearTimeout(late);
    outside.off('data', hear);
    outside.off('close', closed);
  }
}

interface Unreadable {
  readonly received: Buffer;
}
interface Reading extends Unreadable {
  readonly read: (received: Buffer) => Hello;
}
type Received = 'gone' | Unreadable | (ReadHello & Unreadable);

/** The hello, and everything that was read for it. The socket is paused then. */
async function receiveHello(
  socket: Socket,
  silent_ms: number,
  { received, read }: Reading = { received: Buffer.alloc(0), read: readClientHello },
): Promise<Received> {
  const { promise, resolve } = Promise.withResolvers<Received>();
  const unreadable = () => {
    socket.pause();
    resolve({ received });
  };
  let late = setTimeout(unreadable, silent_ms);
  const take = (chunk: Buffer) => {
    if (received.length === 0) {
      clearTimeout(late);
      late = setTimeout(unreadable, HELLO_MS);
    }
    received = Buffer.concat([received, chunk]);
    const hello = read(received);
    if (hello === 'more') return;
    socket.pause();
    resolve(hello === 'not tls' ? { received } : { ...hello, received });
  };
  socket.on('data', take).resume();
  const closed = () => (received.length === 0 ? resolve('gone') : unreadable());
  socket.once('close', closed);
  socket.once('end', closed);
  try {
    return await promise;
  } finally {
    clearTimeout(late);
    socket.off('data', take);
    socket.off('close', closed);
    socket.off('end', closed);
  }
}
