/** Connects to a VM's sshd: on this machine its port, on another a tunnel through its agent. */
import { connect } from 'node:net';
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

export function dialBy(client: ControlPlaneClient): Dial {
  return (target, timeout_ms) =>
    target.startsWith(TUNNEL)
      ? openTunnel(client, target.slice(TUNNEL.length) as InstanceId)
      : dialPort(target, timeout_ms);
}
