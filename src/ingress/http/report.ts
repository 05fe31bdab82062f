/** Reports to the control plane what each port was used for. What did not arrive is in the next report. */
import { BATCHES, BatchSender } from '../../protocol/batches.ts';
import type { ControlPlaneClient } from '../../protocol/client.ts';
import { STATUS_CLASSES } from '../../protocol/ingress-types.ts';
import { present } from '../../shared/assert.ts';
import type { Log } from '../../shared/log.ts';
import { pause } from '../../shared/retry.ts';
import type { GuestPort, PortUse } from './guest-port.ts';

const NONE: readonly number[] = STATUS_CLASSES.map(() => 0);

export class HttpReporter {
  readonly #client: Pick<ControlPlaneClient, 'reportHttp'>;
  readonly #ports: () => Iterable<GuestPort>;
  readonly #every_ms: number;
  readonly #sender: BatchSender<typeof BATCHES.reportHttp.item>;
  #responses = NONE;

  constructor(
    { client, log }: { readonly client: Pick<ControlPlaneClient, 'reportHttp'>; readonly log: Log },
    ports: () => Iterable<GuestPort>,
    every_ms: number,
  ) {
    this.#client = client;
    this.#ports = ports;
    this.#every_ms = every_ms;
    this.#sender = new BatchSender(BATCHES.reportHttp, log);
  }

  /** A guest can answer any status: one that is in no class is not counted. */
  count(status: number): void {
    const at = Math.floor(status / 100) - 1;
    this.#responses = this.#responses.map((count, each) => (each === at ? count + 1 : count));
  }

  async run(signal: AbortSignal): Promise<void> {
    while (await pause(this.#every_ms, signal)) await this.#report(signal);
  }

  async #report(signal: AbortSignal): Promise<void> {
    const used = [...this.#ports()].filter(({ use }) => isUsed(use));
    if (used.length === 0 && this.#responses.every((count) => count === 0)) return;
    const left = new Map(used.map((port) => [{ port_id: port.route.port_id, ...port.use }, port]));
    for (const port of used) port.use = { requests: 0, sent_bytes: 0, received_bytes: 0, last_error: null };
    let responses = this.#responses;
    this.#responses = NONE;
    try {
      await this.#sender.send([...left.keys()], {
        post: async (ports) => {
          await this.#client.reportHttp({ ports, responses }, signal);
          responses = NONE;
        },
        settled: (ports) => {
          for (const each of ports) left.delete(each);
        },
      });
    } catch {
      // The control plane does not answer.
    }
    const unsent = responses;
    this.#responses = this.#responses.map((count, at) => count + present(unsent[at], 'count of a class'));
    for (const [lost, port] of left) port.use = sum(lost, port.use);
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
