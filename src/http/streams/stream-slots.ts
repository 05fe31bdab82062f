/**
 * Slots of live streams and consoles. Each open one holds a slot; an organisation has as many as its quota, and the
 * process has a fixed number. Every control plane process counts its own.
 */
import { AppError } from '../../lib/errors.ts';
import type { OrgId } from '../../lib/ids.ts';
import { type Limit, requireWithin } from '../../lib/quotas.ts';

const MAX_OPEN = 10_000;
const RETRY_S = 15;

export class StreamSlots {
  readonly #held = new Map<OrgId, number>();
  #count = 0;

  /** Takes a slot. Call the returned function once, to release it. @throws AppError QUOTA_EXCEEDED, UNAVAILABLE */
  take(org_id: OrgId, limit: Limit): () => void {
    requireWithin('streams', limit, this.heldBy(org_id));
    if (this.#count >= MAX_OPEN) {
      throw new AppError('UNAVAILABLE', {
        message: 'Too many streams and consoles are open. Try again shortly.',
        retry_after_seconds: RETRY_S,
      });
    }
    this.#held.set(org_id, this.heldBy(org_id) + 1);
    this.#count += 1;
    return () => {
      const left = this.heldBy(org_id) - 1;
      if (left <= 0) this.#held.delete(org_id);
      else this.#held.set(org_id, left);
      this.#count -= 1;
    };
  }

  heldBy(org_id: OrgId): number {
    return this.#held.get(org_id) ?? 0;
  }
}
