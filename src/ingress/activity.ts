/** Reports to the control plane which ports are in use. A failed report is included in the next one. */
import type { ControlPlaneClient } from '../agent-api/client.ts';
import { pause } from '../lib/backoff.ts';
import type { InstancePort } from './instance-port.ts';

/** A newly used port is reported soon. The delay coalesces several. */
const SOON_MS = 100;

export class ActivityReporter {
  readonly #client: ControlPlaneClient;
  readonly #ports: () => Iterable<InstancePort>;
  readonly #watching_since = performance.now();
  readonly #every_ms: number;
  #reported_until = Number.NEGATIVE_INFINITY;
  #report_soon = new AbortController();

  constructor(client: ControlPlaneClient, ports: () => Iterable<InstancePort>, every_ms: number) {
    this.#every_ms = every_ms;
    this.#client = client;
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
    const active = [...this.#ports()].flatMap((port) => {
      const used_ms = port.lastUsed(now_ms);
      if (used_ms === null || used_ms < this.#reported_until) return [];
      return [{ instance_id: port.route.instance_id, ago_ms: Math.max(0, Math.round(now_ms - used_ms)) }];
    });
    const watched_ms = Math.round(now_ms - this.#watching_since);
    await this.#client.reportActivity({ watched_ms, active }, signal);
    this.#reported_until = now_ms;
  }
}
