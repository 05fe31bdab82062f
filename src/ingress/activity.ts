/** Tells the control plane which ports are in use. What it has not heard is told again, so nothing is missed. */
import type { ControlPlaneClient } from '../agent-api/client.ts';
import { pause } from '../lib/backoff.ts';
import type { InstancePort } from './instance-port.ts';

/** A port that comes into use is told of soon; others that do at the same time go along. */
const HURRY_MS = 100;

export class ActivityReporter {
  readonly #client: ControlPlaneClient;
  readonly #ports: () => Iterable<InstancePort>;
  readonly #watching_since = performance.now();
  readonly #every_ms: number;
  #heard_until = Number.NEGATIVE_INFINITY;
  #hurry = new AbortController();

  constructor(client: ControlPlaneClient, ports: () => Iterable<InstancePort>, every_ms: number) {
    this.#every_ms = every_ms;
    this.#client = client;
    this.#ports = ports;
  }

  hurry(): void {
    this.#hurry.abort();
  }

  async run(signal: AbortSignal): Promise<void> {
    while (!signal.aborted) {
      this.#hurry = new AbortController();
      // Heard of next time.
      await this.#report(signal).catch(() => undefined);
      await pause(this.#every_ms, AbortSignal.any([signal, this.#hurry.signal]));
      if (this.#hurry.signal.aborted) await pause(HURRY_MS, signal);
    }
  }

  async #report(signal: AbortSignal): Promise<void> {
    const now_ms = performance.now();
    const active = [...this.#ports()].flatMap((port) => {
      const used_ms = port.lastUsed(now_ms);
      if (used_ms === null || used_ms < this.#heard_until) return [];
      return [{ instance_id: port.route.instance_id, ago_ms: Math.max(0, Math.round(now_ms - used_ms)) }];
    });
    const watched_ms = Math.round(now_ms - this.#watching_since);
    await this.#client.reportActivity({ watched_ms, active }, signal);
    this.#heard_until = now_ms;
  }
}
