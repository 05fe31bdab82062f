/** Requests whose body may take as long as it comes, although Node ends any other that is not complete within a minute. */
import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';
import { errnoOf } from '../../../shared/errors.ts';

const sockets = new WeakSet<Socket>();

/** The handler must bound the silence of the caller. */
export function takesLong(request: IncomingMessage): void {
  const { socket } = request;
  sockets.add(socket);
  request.once('close', () => sockets.delete(socket));
}

/** Whether an error of a client is only that its request takes long, and may. */
export function mayTakeLong(error: Error, socket: Socket): boolean {
  return errnoOf(error) === 'ERR_HTTP_REQUEST_TIMEOUT' && sockets.has(socket);
}
