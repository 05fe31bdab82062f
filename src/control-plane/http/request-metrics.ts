/** Counts requests and their durations by route, for `/metrics`. */
import type { FastifyInstance } from 'fastify';
import { Histogram, Registry } from 'prom-client';
import { PortMetrics } from '../monitoring/port-metrics.ts';

const DURATIONS_S = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];

/** Durations of the requests that this process has answered. */
export class RequestMetrics {
  readonly registry = new Registry();
  readonly ports = new PortMetrics(this.registry);
  readonly #requests = new Histogram({
    name: 'berth_http_request_duration_seconds',
    help: 'Requests to the API by method, route and status; long polls and streams count for their whole duration',
    labelNames: ['method', 'route', 'status'] as const,
    buckets: DURATIONS_S,
    registers: [this.registry],
  });

  /** Counts the answers of `app` from now on. */
  count(app: FastifyInstance): void {
    app.addHook('onResponse', (request, reply, done) => {
      // The path of an unknown route would be an unbounded label.
      const labels = {
        method: request.method,
        route: request.routeOptions.url ?? 'none',
        status: reply.statusCode,
      };
      this.#requests.observe(labels, reply.elapsedTime / 1000);
      done();
    });
  }
}
