/** The bodies of requests that are held in memory: bounded each, for each caller, and in all. */
import type { IncomingMessage, ServerResponse } from 'node:http';
import { Failure } from './failures.ts';

/** Such a body counts nothing. It is also the most that is read before the caller has proved who it is. */
export const SMALL_BODY_BYTES = 64 * 1024;
const MOST_OF_A_CALLER_BYTES = 64 * 1024 * 1024;
const MOST_BYTES = 256 * 1024 * 1024;

export class BodyBudget {
  readonly #under_way = new Map<string, number>();
  #all = 0;

  /** Takes the room of a body until it was answered. @throws Failure resource_exhausted, too_large */
  take(caller: string, request: IncomingMessage, response: ServerResponse, max_bytes: number): void {
    const { 'content-length': length, 'transfer-encoding': encoding } = request.headers;
    const bytes = encoding === undefined ? Number(length ?? 0) : max_bytes;
    if (bytes > max_bytes) throw tooLarge(max_bytes);
    if (bytes <= SMALL_BODY_BYTES) return;
    const before = this.#under_way.get(caller) ?? 0;
    if (before + bytes > MOST_OF_A_CALLER_BYTES || this.#all + bytes > MOST_BYTES)
      throw new Failure('resource_exhausted', 'Too many large requests are under way.', {
        retry_after_seconds: 1,
      });
    this.#add(caller, bytes);
    response.once('close', () => this.#add(caller, -bytes));
  }

  #add(caller: string, bytes: number): void {
    this.#all += bytes;
    const now = (this.#under_way.get(caller) ?? 0) + bytes;
    if (now > 0) this.#under_way.set(caller, now);
    else this.#under_way.delete(caller);
  }
}

/** @throws Failure too_large */
export async function readBody(request: IncomingMessage, max_bytes: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for await (const chunk of partsOfBody(request, max_bytes)) chunks.push(chunk);
  return Buffer.concat(chunks);
}

/** @throws Failure too_large */
export async function* partsOfBody(request: IncomingMessage, max_bytes: number): AsyncGenerator<Buffer> {
  let bytes = 0;
  for await (const chunk of request as AsyncIterable<Buffer>) {
    bytes += chunk.length;
    if (bytes > max_bytes) throw tooLarge(max_bytes);
    yield chunk;
  }
}

function tooLarge(max_bytes: number): Failure {
  const most = max_bytes < 2 ** 20 ? `${max_bytes / 2 ** 10} KiB` : `${max_bytes / 2 ** 20} MiB`;
  return new Failure('too_large', `A request here has at most ${most}.`);
}
