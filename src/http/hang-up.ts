import type { FastifyReply } from 'fastify';

/** Aborts when the caller hangs up (or has its answer). */
export function hangUp(reply: FastifyReply): AbortSignal {
  const controller = new AbortController();
  reply.raw.once('close', () => controller.abort());
  return controller.signal;
}
