/**
 * Handles guests' connections to ports other than 80 and 443, whose protocol the proxy does not read for a server
 * name. A connection is permitted if the resolver has answered this VM with the destination's address, for a name that
 * the VM's policy allows with this port. Otherwise it is reported as denied, and reset.
 *
 * `joinTo`, which tls-handler.ts uses too, connects to a permitted destination and copies bytes in both directions.
 */
import { connect, type Socket } from 'node:net';
import { contain } from '../shared/contain.ts';
import { passParts } from '../shared/streams.ts';
import type { ProxiedGuest } from './proxied-guest.ts';

export interface Destination {
  readonly address: string;
  readonly port: number;
}

export async function passByAddress(
  socket: Socket,
  guest: ProxiedGuest,
  { address, port }: Destination,
): Promise<void> {
  let name: string | null = null;
  const release = guest.hold({
    isPermitted: () => name === null || guest.permitsName(name, port),
    cut: () => socket.resetAndDestroy(),
  });
  if (!release) return void socket.resetAndDestroy();
  socket.once('close', release);
  name = await guest.nameAt(address, port);
  if (name === null || !guest.permitsName(name, port)) {
    guest.deny({ name: null, address, port });
    return void socket.resetAndDestroy();
  }
  if (!socket.destroyed) joinTo(socket, { address, port }, Buffer.alloc(0));
}

const CONNECT_MS = 15_000;
const KEEP_ALIVE_MS = 60_000;

/**
 * Connects to a checked address for a guest, and joins the two connections.
 * `first`: what the guest has sent already. The end of either connection ends the other; a failure to connect resets the guest's.
 * `more`: takes what the guest sends next, and says whether the rest may flow.
 */
export function joinTo(
  inside: Socket,
  { address, port }: Destination,
  first: Buffer,
  more: (outside: Socket) => Promise<boolean> = async () => true,
): void {
  const outside = contain(connect({ host: address, port, allowHalfOpen: true, noDelay: true }));
  const late = setTimeout(() => outside.destroy(), CONNECT_MS);
  inside.setNoDelay(true);
  inside.once('close', () => outside.destroy());
  outside.on('error', () => outside.destroy());
  outside.once('close', (failed) => {
    clearTimeout(late);
    if (outside.bytesRead === 0 || failed) inside.resetAndDestroy();
    else inside.destroySoon();
  });
  outside.once('connect', () => {
    clearTimeout(late);
    for (const socket of [inside, outside]) socket.setKeepAlive(true, KEEP_ALIVE_MS);
    if (first.length > 0) outside.write(first);
    passParts(outside, inside);
    void more(outside).then(
      (flows) => void (flows ? passParts(inside, outside) : outside.destroy()),
      () => outside.destroy(),
    );
  });
}
