/** Reports to the control plane which ports are in use. A failed report is included in the next one. */
import { BATCHES, BatchSender } from '../protocol/batches.ts';
import type { ControlPlaneClient } from '../protocol/client.ts';
import type { InstanceId } from '../shared/ids.ts';
import type { Log } from '../shared/log.ts';
import { pause } from '../shared/retry.ts';

/** A newly used port is reported soon. The delay coalesces several. */
const SOON_MS = 100;

/** A port of an instance: SSH or HTTP. */
export interface UsedPort {
  readonly route: { readonly instance_id: InstanceId };
  /** On the clock of `performance.now()`; null: never. */
  lastUsed(now_ms: number): number | null;
}

export class ActivityReporter {
  readonly #client: Pick<ControlPlaneClient, 'reportActivity'>;
  readonly #sender: BatchSender<typeof BATCHES.activity.item>;
  readonly #ports: () => Iterable<UsedPort>;
  readonly #watching_since = performance.now();
  readonly #every_ms: number;
  #reported_until = Number.NEGATIVE_INFINITY;
  #report_soon = new AbortController();

  constructor(
    { client, log }: { readonly client: Pick<ControlPlaneClient, 'reportActivity'>; readonly log: Log },
    ports: () => Iterable<UsedPort>,
    every_ms: number,
  ) {
    this.#every_ms = every_ms;
    this.#client = client;
    this.#sender = new BatchSender(BATCHES.activity, log);
    this.#ports = ports;
  }

  reportSoon(): void {
    this.#report_soon.abort();
  }

  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      this.#report_soon = new AbortController();
      // The next report includes it.
      await this.#report(signal).catch(() => undefined);
      await pause(this.#every_ms, AbortSignal.any([signal, this.#report_soon.signal]));
      if (this.#report_soon.signal.aborted) await pause(SOON_MS, signal);
    }
  }

  async #report(signal: AbortSignal): Promise<void> {
    const now_ms = performance.now();
    const agos = new Map<InstanceId, number>();
    for (const port of this.#ports()) {
      const used_ms = port.lastUsed(now_ms);
      if (used_ms === null || used_ms < this.#reported_until) continue;
      const ago_ms = Math.max(0, Math.round(now_ms - used_ms));
      const { instance_id } = port.route;
      agos.set(instance_id, Math.min(ago_ms, agos.get(instance_id) ?? ago_ms));
    }
    const used = [...agos].map(([instance_id, ago_ms]) => ({ instance_id, ago_ms }));
    const watched_ms = Math.round(now_ms - this.#watching_since);
    await this.#sender.send(used, {
      post: (active) => this.#client.reportActivity({ watched_ms, active }, signal),
    });
    this.#reported_until = now_ms;
  }
}
