/**
 * Queues the deliveries that a sender has claimed. A delivery is sent in order, or is a retry. Pure.
 *
 * - Of the deliveries in order, at most one for each instance is ready or in flight. Those of one instance become ready
 *   in the order in which they were added.
 * - Retries are counted apart from deliveries in order, so they never hold those up.
 *
 *   add ─▶ (behind the same instance) ─▶ ready ─▶ in flight ─▶ answered ─▶ (outcome recorded) release
 */
import type { InstanceId, WebhookDeliveryId } from '../../shared/ids.ts';

export interface Queued {
  readonly id: WebhookDeliveryId;
  readonly instance_id: InstanceId | null;
  readonly in_order: boolean;
}

class Share<D extends Queued> {
  readonly claimed = new Set<WebhookDeliveryId>();
  ready: D[] = [];
  in_flight = 0;

  canSend(parallel: number): boolean {
    return this.ready.length > 0 && this.in_flight < parallel;
  }
}

/** Requests in flight to one receiver, at most. */
export interface Parallel {
  readonly in_order: number;
  readonly retries: number;
}

export class DeliveryQueue<D extends Queued> {
  readonly #in_order = new Share<D>();
  readonly #retries = new Share<D>();
  /** By instance: the deliveries behind the one that is ready or in flight. */
  readonly #behind = new Map<InstanceId, D[]>();

  /** How many are claimed and not released. */
  get claimed(): { readonly in_order: number; readonly retries: number } {
    return { in_order: this.#in_order.claimed.size, retries: this.#retries.claimed.size };
  }

  get in_flight(): number {
    return this.#in_order.in_flight + this.#retries.in_flight;
  }

  get isEmpty(): boolean {
    return this.#in_order.claimed.size + this.#retries.claimed.size === 0;
  }

  /** Does nothing if it is claimed already. */
  add(delivery: D): void {
    const { id, instance_id, in_order } = delivery;
    if (this.#in_order.claimed.has(id) || this.#retries.claimed.has(id)) return;
    const share = this.#shareOf(delivery);
    share.claimed.add(id);
    const behind = in_order && instance_id !== null ? this.#behind.get(instance_id) : undefined;
    if (behind) {
      behind.push(delivery);
      return;
    }
    if (in_order && instance_id !== null) this.#behind.set(instance_id, []);
    share.ready.push(delivery);
  }

  canSend(parallel: Parallel): boolean {
    return this.#in_order.canSend(parallel.in_order) || this.#retries.canSend(parallel.retries);
  }

  /** The next delivery, which is in flight from now on; undefined when none is ready or `parallel` are in flight. */
  next(parallel: Parallel): D | undefined {
    const share = this.#in_order.canSend(parallel.in_order) ? this.#in_order : this.#retries;
    if (share === this.#retries && !share.canSend(parallel.retries)) return undefined;
    share.in_flight += 1;
    return share.ready.shift();
  }

  /** Its request has ended: the next delivery of its instance is ready. */
  answered(delivery: D): void {
    this.#shareOf(delivery).in_flight -= 1;
    const { instance_id, in_order } = delivery;
    if (!in_order || instance_id === null) return;
    const next = this.#behind.get(instance_id)?.shift();
    if (next) this.#in_order.ready.push(next);
    else this.#behind.delete(instance_id);
  }

  /** The claim ends. */
  release(id: WebhookDeliveryId): void {
    if (!this.#in_order.claimed.delete(id)) this.#retries.claimed.delete(id);
  }

  /** Releases all deliveries whose request has not begun. */
  releaseUnsent(): void {
    const behind = [...this.#behind.values()].flat();
    for (const { id } of [...this.#in_order.ready, ...this.#retries.ready, ...behind]) this.release(id);
    this.#in_order.ready = [];
    this.#retries.ready = [];
    this.#behind.clear();
  }

  #shareOf({ in_order }: D): Share<D> {
    return in_order ? this.#in_order : this.#retries;
  }
}
