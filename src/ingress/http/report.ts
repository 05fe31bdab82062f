/** Reports to the control plane what each port was used for. A failed report is included in the next one. */
import type { ControlPlaneClient } from '../../agent-api/client.ts';
import { STATUS_CLASSES } from '../../agent-api/http-port-types.ts';
import { pause } from '../../lib/backoff.ts';
import type { GuestPort, PortUse } from './guest-port.ts';

export class HttpReporter {
  readonly #client: Pick<ControlPlaneClient, 'reportHttp'>;
  readonly #ports: () => Iterable<GuestPort>;
  readonly #every_ms: number;
  #responses = STATUS_CLASSES.map(() => 0);

  constructor(
    client: Pick<ControlPlaneClient, 'reportHttp'>,
    ports: () => Iterable<GuestPort>,
    every_ms: number,
  ) {
    this.#client = client;
    this.#ports = ports;
    this.#every_ms = every_ms;
  }

  count(status: number): void {
    const at = Math.floor(status / 100) - 1;
    this.#responses[at] = (this.#responses[at] ?? 0) + 1;
  }

  async run(signal: AbortSignal): Promise<void> {
    while (await pause(this.#every_ms, signal)) await this.#report(signal);
  }

  async #report(signal: AbortSignal): Promise<void> {
    const used = [...this.#ports()].filter(({ use }) => isUsed(use));
    const responses = this.#responses;
    if (used.length === 0 && responses.every((count) => count === 0)) return;
    const ports = used.map(({ route, use }) => ({ port_id: route.port_id, ...use }));
    for (const port of used) port.use = { requests: 0, sent_bytes: 0, received_bytes: 0, last_error: null };
    this.#responses = responses.map(() => 0);
    try {
      await this.#client.reportHttp({ ports, responses }, signal);
    } catch {
      this.#responses = this.#responses.map((count, at) => count + (responses[at] ?? 0));
      for (const [at, port] of used.entries()) {
        const lost = ports[at];
        if (lost) port.use = sum(lost, port.use);
      }
    }
  }
}

function isUsed({ requests, sent_bytes, received_bytes, last_error }: PortUse): boolean {
  return requests + sent_bytes + received_bytes > 0 || last_error !== null;
}

function sum(before: PortUse, now: PortUse): PortUse {
  return {
    requests: before.requests + now.requests,
    sent_bytes: before.sent_bytes + now.sent_bytes,
    received_bytes: before.received_bytes + now.received_bytes,
    last_error: now.last_error ?? before.last_error,
  };
}
