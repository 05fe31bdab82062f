/**
 * Opens the ingress's connections to a VM's sshd or to another TCP port of its guest. A VM on this machine is dialled
 * directly; a VM on another host is reached through a tunnel to that host's agent. `HeldSocket` is a client's
 * connection that waits until its VM runs.
 */
import { connect, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { ControlPlaneClient } from '../protocol/client.ts';
import { TUNNEL } from '../protocol/ingress-types.ts';
import { contain } from '../shared/contain.ts';
import type { InstanceId } from '../shared/ids.ts';

/** Rejects when the target does not answer. */
export type Dial = (target: string, timeout_ms: number) => Promise<Duplex>;

export const dialPort: Dial = (target, timeout_ms) => {
  const at = target.lastIndexOf(':');
  const socket = contain(
    connect({
      host: target.slice(0, at),
      port: Number(target.slice(at + 1)),
      noDelay: true,
      allowHalfOpen: true,
      keepAlive: true,
      keepAliveInitialDelay: 60_000,
    }),
  );
  const { promise, resolve, reject } = Promise.withResolvers<Duplex>();
  const timer = setTimeout(() => socket.destroy(), timeout_ms);
  socket.once('connect', () => {
    clearTimeout(timer);
    resolve(socket);
  });
  socket.once('error', () => undefined);
  socket.once('close', () => {
    clearTimeout(timer);
    reject(new Error(`${target} does not answer`));
  });
  return promise;
};

/** To sshd, or to a port. */
export async function openTunnel(
  client: Pick<ControlPlaneClient, 'openTunnel'>,
  instance_id: InstanceId,
  port?: number,
): Promise<Duplex> {
  return contain(await client.openTunnel(instance_id, port));
}

export function dialBy(client: Pick<ControlPlaneClient, 'openTunnel'>): Dial {
  return (target, timeout_ms) =>
    target.startsWith(TUNNEL)
      ? openTunnel(client, target.slice(TUNNEL.length) as InstanceId)
      : dialPort(target, timeout_ms);
}

/** A connection that waits for its VM. It buffers what the client sends, up to a bound; beyond that TCP pushes back. */
export class HeldSocket {
  readonly socket: Socket;
  readonly #parts: Buffer[] = [];
  #bytes = 0;
  readonly #timer: NodeJS.Timeout;
  readonly #buffer: (part: Buffer) => void;
  readonly #gone: () => void;

  /** Calls `gone` when the client disconnects, or the time limit has passed. */
  constructor(socket: Socket, limits: { held_bytes: number; held_ms: number }, gone: () => void) {
    this.socket = socket;
    this.#timer = setTimeout(gone, limits.held_ms);
    this.#buffer = (part) => {
      this.#parts.push(part);
      this.#bytes += part.length;
      if (this.#bytes >= limits.held_bytes) socket.pause();
    };
    this.#gone = gone;
    // An end of sending too: no SSH client ends its stream before the server's first line.
    socket.once('end', this.#gone).once('close', this.#gone);
    // Only a reading socket notices that the client disconnects.
    socket.on('data', this.#buffer).resume();
  }

  /** Stops waiting, and puts the buffered bytes back into the socket. */
  release(): Socket {
    const { socket } = this;
    clearTimeout(this.#timer);
    socket.off('data', this.#buffer).off('end', this.#gone).off('close', this.#gone);
    socket.pause();
    if (this.#bytes > 0) socket.unshift(Buffer.concat(this.#parts));
    return socket;
  }

  drop(): void {
    clearTimeout(this.#timer);
    this.socket.off('end', this.#gone).off('close', this.#gone);
    this.socket.destroy();
  }
}
