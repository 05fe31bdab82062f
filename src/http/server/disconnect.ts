import type { FastifyReply } from 'fastify';

/** Aborts when the caller hangs up (or has its answer): already aborted where that was before this was asked. */
export function disconnectSignal({ raw, request }: FastifyReply): AbortSignal {
  const controller = new AbortController();
  const { socket } = request.raw;
  const gone = () => controller.abort();
  if (socket.destroyed) gone();
  // The connection's end too: a response that waits for its turn on it does not hear of that.
  socket.once('close', gone);
  raw.once('close', () => {
    socket.off('close', gone);
    gone();
  });
  return controller.signal;
}
