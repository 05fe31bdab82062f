/** Bounds the memory of bodies under way: each organisation may send so much at a time, of which small bodies count nothing. */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { AppError } from '../../../shared/errors.ts';
import type { OrgId } from '../../../shared/ids.ts';
import { disconnectSignal } from './disconnect.ts';

/** Also the most that a route takes without a credential. */
export const SMALL_BODY_BYTES = 64 * 1024;
const MOST_BYTES = 64 * 1024 * 1024;

export class BodyBudget {
  readonly #under_way = new Map<OrgId, number>();

  /** Until the answer was sent. A body that the handler reads as it comes is in nobody's memory. @throws AppError UNAVAILABLE */
  take(org_id: OrgId, request: FastifyRequest, reply: FastifyReply): void {
    const { bodyLimit, config } = request.routeOptions;
    if (config.streamed_body === true) return;
    const bytes = announcedBytes(request, bodyLimit ?? 0);
    if (bytes <= SMALL_BODY_BYTES) return;
    const before = this.#under_way.get(org_id) ?? 0;
    if (before + bytes > MOST_BYTES) {
      const message = 'Too many large requests of the organisation are under way. Try again shortly.';
      throw new AppError('UNAVAILABLE', { message, retry_after_seconds: 1 });
    }
    this.#under_way.set(org_id, before + bytes);
    const over = disconnectSignal(reply);
    if (over.aborted) this.#give(org_id, bytes);
    else over.addEventListener('abort', () => this.#give(org_id, bytes), { once: true });
  }

  #give(org_id: OrgId, bytes: number): void {
    const left = (this.#under_way.get(org_id) ?? 0) - bytes;
    if (left > 0) this.#under_way.set(org_id, left);
    else this.#under_way.delete(org_id);
  }
}

/** At most what the route takes: a longer body is refused. */
function announcedBytes({ headers }: FastifyRequest, most: number): number {
  if (headers['transfer-encoding'] !== undefined) return most;
  return Math.min(Number(headers['content-length'] ?? 0), most);
}
