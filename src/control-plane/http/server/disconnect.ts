import type { FastifyReply } from 'fastify';

/** Aborts when the caller disconnects, or has its answer; aborted already if that has happened before. */
export function disconnectSignal({ raw, request }: FastifyReply): AbortSignal {
  const controller = new AbortController();
  const { socket } = request.raw;
  const gone = () => controller.abort();
  if (socket.destroyed) gone();
  // A response that waits for an earlier one on its connection gets no event of its own.
  socket.once('close', gone);
  raw.once('close', () => {
    socket.off('close', gone);
    gone();
  });
  return controller.signal;
}
