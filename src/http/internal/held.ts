/** Long polls: an answer is held until it differs from the one that the caller has seen. */
import { createHash } from 'node:crypto';
import type { FastifyReply } from 'fastify';
import { disconnectSignal } from '../server/disconnect.ts';

/** Holds a poll until its answer differs from the one that the caller has seen, or the time is over. */
export async function held<T extends { etag: string }>(
  read: () => Promise<T>,
  seen: string | null,
  reply: FastifyReply,
  wait: (look: () => Promise<T | undefined>, signal: AbortSignal) => Promise<T | undefined>,
): Promise<T> {
  const look = async () => {
    const answer = await read();
    return answer.etag === seen ? undefined : answer;
  };
  return (await wait(look, disconnectSignal(reply))) ?? (await read());
}

/** Identifies the answer of a poll. */
export function etagOf(value: unknown): string {
  return createHash('sha256').update(JSON.stringify(value)).digest('base64url').slice(0, 22);
}
