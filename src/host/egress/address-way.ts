/**
 * A connection whose protocol does not tell a name: permitted if the destination is an address that the resolver gave this VM for a
 * name that the policy has with this port.
 */
import type { Socket } from 'node:net';
import type { Guest } from './guest.ts';
import { joinTo } from './join-sockets.ts';
import type { Destination } from './tls-way.ts';

export async function passByAddress(
  socket: Socket,
  guest: Guest,
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
