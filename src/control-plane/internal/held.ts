/** Long polls: an answer is held until it differs from the one that the caller has seen. */
import { createHash } from 'node:crypto';
import type { FastifyReply } from 'fastify';
import { present } from '../../shared/assert.ts';
import { disconnectSignal } from '../http/server/disconnect.ts';

/** Holds a poll until its answer differs from the one that the caller has seen, or the time is over. */
export async function held<T extends { etag: string }>(
  read: () => Promise<T>,
  seen: string | null,
  reply: FastifyReply,
  wait: (look: () => Promise<T | undefined>, signal: AbortSignal) => Promise<T | undefined>,
): Promise<T> {
  let newest: T | undefined;
  const look = async () => {
    newest = await read();
    return newest.etag === seen ? undefined : newest;
  };
  const changed = await wait(look, disconnectSignal(reply));
  return changed ?? present(newest, 'an answer: it looks at least once');
}

/** Identifies the answer of a poll. */
export function etagOf(value: unknown): string {
  return createHash('sha256').update(JSON.stringify(value)).digest('base64url').slice(0, 22);
}
