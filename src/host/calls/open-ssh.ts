/** A connection to a VM's sshd for the ingress of another machine: only this host reaches its guests. */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { messageOf } from '../../shared/errors.ts';
import type { Machine } from '../machine/machine.ts';
import { sshEndpoint } from '../network/addresses.ts';
import { CallError } from './call-error.ts';

const DIAL_MS = 5_000;

/** @throws CallError not_running */
export async function dialSshd({ record }: Machine): Promise<Socket> {
  const socket = connect({ ...sshEndpoint(record.network), noDelay: true, allowHalfOpen: true });
  try {
    await once(socket, 'connect', { signal: AbortSignal.timeout(DIAL_MS) });
    // The VM may end before the other stream is connected.
    socket.on('error', () => socket.destroy());
    return socket;
  } catch (error) {
    socket.destroy();
    throw new CallError('not_running', `The guest's sshd cannot be reached: ${messageOf(error)}`);
  }
}
