/**
 * Metrics for Prometheus, on a listener of their own (`BERTH_METRICS_LISTEN`), which asks for no credential: they hold
 * ids and numbers, nothing of what is in an instance. What is counted here is this process's; what is read at a scrape
 * is the installation's. Bounded: labels are routes, statuses, states, and the instances that run.
 */
import Fastify, { type FastifyInstance, LogController } from 'fastify';
import { collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { UsageResult, VmSample } from '../agent-api/host-calls.ts';
import { poolState } from '../db/pool.ts';
import { listLiveHosts } from '../hosts/store.ts';
import { countMails } from '../mail/store.ts';
import { countDigests } from '../notifications/mail-store.ts';
import { countOpenFlushes, countVmStates } from '../vms/count-store.ts';
import { listLively } from '../vms/store.ts';
import { countPendingDeliveries } from '../webhooks/delivery-store.ts';
import type { AppContext } from './context.ts';
import { endConnectionsAtClose } from './end-connections.ts';
import { sendError } from './errors.ts';
import { KnownHosts, registerKnownHosts } from './known-hosts.ts';

const DURATIONS_S = [0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60];
const USAGE_WITHIN_MS = 2_000;

export class RequestMetrics {
  readonly registry = new Registry();
  readonly #requests = new Histogram({
    name: 'berth_http_request_duration_seconds',
    help: 'Requests to the API by method, route and status; those that wait or stream count for as long as they do',
    labelNames: ['method', 'route', 'status'] as const,
    buckets: DURATIONS_S,
    registers: [this.registry],
  });

  /** Counts what `app` answers from now on. */
  count(app: FastifyInstance): void {
    app.addHook('onResponse', (request, reply, done) => {
      // A path that is no route's could be anything.
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

type Context = Pick<AppContext, 'db' | 'host_calls' | 'log'>;
type ScrapeContext = Context & Pick<AppContext, 'public_url' | 'hosts' | 'tls'>;

/** Nothing listens yet. */
export function createMetricsApp({ registry }: RequestMetrics, context: ScrapeContext): FastifyInstance {
  collectDefaultMetrics({ register: registry });
  const gauges = new Gauges(registry, context);
  const app = Fastify({
    loggerInstance: context.log as never,
    logController: new LogController({ disableRequestLogging: true }),
  }) as unknown as FastifyInstance;
  endConnectionsAtClose(app);
  // It asks for no credential: a page in somebody's browser must not read it by a name of its own.
  registerKnownHosts(app, new KnownHosts(context));
  app.setErrorHandler((error, request, reply) => sendError(error, request, reply));
  app.get('/metrics', async (_request, reply) => {
    await gauges.read();
    return reply.type(registry.contentType).send(await registry.metrics());
  });
  return app;
}

const VM_GAUGES = {
  berth_vm_cpu_seconds_total: ["Of the VM's process", (sample: VmSample) => sample.cpu_seconds],
  berth_vm_host_memory_bytes: ['What the VM takes of its host', ({ memory }: VmSample) => memory.host_bytes],
  berth_vm_guest_memory_used_bytes: ['As the guest sees it', ({ memory }: VmSample) => memory.used_bytes],
  berth_vm_disk_read_bytes_total: ['By the guest', ({ disk }: VmSample) => disk.read_bytes],
  berth_vm_disk_written_bytes_total: ['By the guest', ({ disk }: VmSample) => disk.written_bytes],
  berth_vm_network_received_bytes_total: ['By the guest', ({ network }: VmSample) => network.received_bytes],
  berth_vm_network_sent_bytes_total: ['By the guest', ({ network }: VmSample) => network.sent_bytes],
} as const;

/** What is read when somebody looks. */
class Gauges {
  readonly #context: Context;
  readonly #vms: Gauge<'state'>;
  readonly #flushes: Gauge;
  readonly #deliveries: Gauge;
  readonly #mails: Gauge;
  readonly #pool: Gauge<'state'>;
  readonly #of_vms: readonly (readonly [Gauge<'instance_id'>, (sample: VmSample) => number | null])[];

  constructor(registry: Registry, context: Context) {
    this.#context = context;
    const registers = [registry];
    this.#vms = new Gauge({
      name: 'berth_vms',
      help: 'Instances by the state of their VM',
      labelNames: ['state'] as const,
      registers,
    });
    this.#flushes = new Gauge({
      name: 'berth_flushes_open',
      help: 'Flushes that callers wait for',
      registers,
    });
    this.#deliveries = new Gauge({
      name: 'berth_webhook_deliveries_pending',
      help: 'Webhook deliveries still to be made, retries too',
      registers,
    });
    this.#mails = new Gauge({
      name: 'berth_mails_waiting',
      help: 'Mails still to be sent, those that are tried again too',
      registers,
    });
    this.#pool = new Gauge({
      name: 'berth_database_connections',
      help: "This process's pool: connections in use and idle, and callers that wait for one",
      labelNames: ['state'] as const,
      registers,
    });
    this.#of_vms = Object.entries(VM_GAUGES).map(([name, [help, read]]) => [
      new Gauge({ name, help, labelNames: ['instance_id'] as const, registers }),
      read,
    ]);
  }

  /** Rejects when the database is away: a scrape that fails is how Prometheus is told. */
  async read(): Promise<void> {
    const { db } = this.#context;
    const [states, flushes, deliveries, mails, digests] = await Promise.all([
      countVmStates(db),
      countOpenFlushes(db),
      countPendingDeliveries(db),
      countMails(db),
      countDigests(db),
      this.#readVms(),
    ]);
    for (const [state, count] of states) this.#vms.set({ state }, count);
    this.#flushes.set(flushes);
    this.#deliveries.set(deliveries);
    this.#mails.set(mails + digests);
    for (const [state, count] of Object.entries<number>(poolState(db))) this.#pool.set({ state }, count);
  }

  /** VMs of a host that does not answer are left out. */
  async #readVms(): Promise<void> {
    const { db, host_calls } = this.#context;
    const signal = AbortSignal.timeout(USAGE_WITHIN_MS);
    const hosts = await listLiveHosts(db);
    const answers = await Promise.allSettled(
      hosts.map(({ id }) => host_calls.ask<UsageResult>(id, { kind: 'usage' }, USAGE_WITHIN_MS, signal)),
    );
    // A host's word counts for the VMs that are on it.
    const places = new Map((await listLively(db)).map((vm) => [vm.instance_id, vm.host_id]));
    for (const [gauge] of this.#of_vms) gauge.reset();
    for (const [i, answer] of answers.entries()) {
      if (answer.status === 'rejected') continue;
      for (const { instance_id, sample } of answer.value.vms) {
        if (places.get(instance_id) !== hosts[i]?.id) continue;
        for (const [gauge, read] of this.#of_vms) {
          const value = read(sample);
          if (value !== null) gauge.set({ instance_id }, value);
        }
      }
    }
  }
}
