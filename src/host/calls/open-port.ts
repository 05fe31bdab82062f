/** The ways into a guest's TCP ports, for the ingress and for API callers. */
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import { notListeningMessage } from '../../protocol/host-calls.ts';
import { messageOf } from '../../shared/errors.ts';
import { joinStreams } from '../../shared/streams.ts';
import { sshEndpoint } from '../network/addresses.ts';
import { DrainedError, NotListeningError } from '../vm/guest-ports.ts';
import type { Machine } from '../vm/machine.ts';
import { CallError } from './call-error.ts';

/** The address on this machine. @throws CallError not_running, not_listening */
export async function openPort(machine: Machine, port: number): Promise<string> {
  try {
    return await machine.ports.open(port);
  } catch (error) {
    throw asCallError(error, port);
  }
}

/** Joins a connection to the port with the caller's stream, which is opened once the guest has accepted. @throws as openPort */
export async function joinPort(
  machine: Machine,
  port: number,
  openStream: () => Promise<Duplex>,
): Promise<void> {
  const socket = await machine.ports.connect(port).catch((error: unknown) => {
    throw asCallError(error, port);
  });
  try {
    joinStreams(await openStream(), socket);
  } catch (error) {
    socket.destroy();
    throw error;
  }
}

function asCallError(error: unknown, port: number): unknown {
  if (error instanceof NotListeningError) return new CallError('not_listening', notListeningMessage(port));
  if (error instanceof DrainedError)
    return new CallError('not_running', 'The VM stops, restarts or suspends.');
  return error;
}

/** A connection to a VM's sshd for the ingress of another machine: only this host reaches its guests. */

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
