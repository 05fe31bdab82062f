/**
 * Places of live streams and consoles, held for as long as they are open: each organisation has as many as its quota
 * says, and the process a number in all. They are counted by each control plane process by itself.
 */
import { AppError } from '../lib/errors.ts';
import type { OrgId } from '../lib/ids.ts';
import { type Limit, requireWithin } from '../lib/quotas.ts';

const IN_ALL = 10_000;
const RETRY_S = 15;

export class Places {
  readonly #held = new Map<OrgId, number>();
  #count = 0;

  /** Takes a place; what it answers gives it back, and is called once. @throws AppError QUOTA_EXCEEDED, UNAVAILABLE */
  take(org_id: OrgId, limit: Limit): () => void {
    requireWithin('streams', limit, this.heldBy(org_id));
    if (this.#count >= IN_ALL) {
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
