/** What the ingress reports of HTTP ports, over all of them: a port would be an unbounded label. */
import { Counter, type Registry } from 'prom-client';
import { type HttpReport, STATUS_CLASSES } from '../../protocol/ingress-types.ts';

export class PortMetrics {
  readonly #responses: Counter<'class'>;
  readonly #bytes: Counter<'direction'>;

  constructor(registry: Registry) {
    const registers = [registry];
    this.#responses = new Counter({
      name: 'berth_http_port_responses_total',
      help: 'Answers to requests to HTTP ports, by the class of their status',
      labelNames: ['class'] as const,
      registers,
    });
    this.#bytes = new Counter({
      name: 'berth_http_port_bytes_total',
      help: 'Bytes of HTTP ports, sent to clients and received from them',
      labelNames: ['direction'] as const,
      registers,
    });
  }

  add({ ports, responses }: HttpReport): void {
    for (const [i, name] of STATUS_CLASSES.entries()) this.#responses.inc({ class: name }, responses[i] ?? 0);
    for (const { sent_bytes, received_bytes } of ports) {
      this.#bytes.inc({ direction: 'sent' }, sent_bytes);
      this.#bytes.inc({ direction: 'received' }, received_bytes);
    }
  }
}
