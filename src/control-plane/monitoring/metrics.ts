/**
 * Metrics for Prometheus, on their own listener (`BERTH_METRICS_LISTEN`), which needs no credential: they contain ids and
 * numbers, but no content of an instance. Counters cover this process; gauges are read at each scrape and cover the
 * installation. Labels are bounded: routes, statuses, states, and running instances.
 */
import Fastify, { type FastifyInstance, LogController } from 'fastify';
import { collectDefaultMetrics, Gauge, type Registry } from 'prom-client';
import type { UsageResult, VmSample } from '../../protocol/host-calls.ts';
import type { AppContext } from '../context.ts';
import { poolState } from '../db/pool.ts';
import { countAllRunning } from '../execs/store.ts';
import { listLiveHosts } from '../fleet/host-store.ts';
import { sendError } from '../http/errors.ts';
import type { RequestMetrics } from '../http/request-metrics.ts';
import { endConnectionsAtClose } from '../http/server/end-connections.ts';
import { KnownHosts, registerKnownHosts } from '../http/server/known-hosts.ts';
import { countMails } from '../mail/store.ts';
import { countDigests } from '../notifications/store.ts';
import { countOpenFlushes, countVmStates, listActive } from '../vms/store.ts';
import { countPendingDeliveries } from '../webhooks/store.ts';
import { FleetMetrics } from './fleet-metrics.ts';

const USAGE_WITHIN_MS = 2_000;

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
  // No credential is needed, so a page in a browser must not reach it by DNS rebinding.
  registerKnownHosts(app, new KnownHosts(context));
  app.setErrorHandler((error, request, reply) => sendError(error, request, reply));
  app.get('/metrics', async (_request, reply) => {
    await gauges.read();
    return reply.type(registry.contentType).send(await registry.metrics());
  });
  return app;
}

const VM_GAUGES = {
  berth_vm_cpu_seconds_total: ["CPU time of the VM's process", (sample: VmSample) => sample.cpu_seconds],
  berth_vm_host_memory_bytes: [
    'Memory that the VM uses on its host',
    ({ memory }: VmSample) => memory.host_bytes,
  ],
  berth_vm_guest_memory_used_bytes: [
    'Used memory, as the guest sees it',
    ({ memory }: VmSample) => memory.used_bytes,
  ],
  berth_vm_disk_read_bytes_total: ['Read by the guest', ({ disk }: VmSample) => disk.read_bytes],
  berth_vm_disk_written_bytes_total: ['Written by the guest', ({ disk }: VmSample) => disk.written_bytes],
  berth_vm_network_received_bytes_total: [
    'Received by the guest',
    ({ network }: VmSample) => network.received_bytes,
  ],
  berth_vm_network_sent_bytes_total: ['Sent by the guest', ({ network }: VmSample) => network.sent_bytes],
} as const;

/** Gauges that a scrape reads. */
class Gauges {
  readonly #context: Context;
  readonly #fleet: FleetMetrics;
  readonly #vms: Gauge<'state'>;
  readonly #execs: Gauge;
  readonly #flushes: Gauge;
  readonly #deliveries: Gauge;
  readonly #mails: Gauge;
  readonly #pool: Gauge<'state'>;
  readonly #of_vms: readonly (readonly [Gauge<'instance_id'>, (sample: VmSample) => number | null])[];

  constructor(registry: Registry, context: Context) {
    this.#context = context;
    this.#fleet = new FleetMetrics(registry);
    const registers = [registry];
    this.#vms = new Gauge({
      name: 'berth_vms',
      help: 'Instances by the state of their VM',
      labelNames: ['state'] as const,
      registers,
    });
    this.#execs = new Gauge({ name: 'berth_execs_running', help: 'Execs that run', registers });
    this.#flushes = new Gauge({
      name: 'berth_flushes_open',
      help: 'Flushes that callers wait for',
      registers,
    });
    this.#deliveries = new Gauge({
      name: 'berth_webhook_deliveries_pending',
      help: 'Pending webhook deliveries, including retries',
      registers,
    });
    this.#mails = new Gauge({
      name: 'berth_mails_waiting',
      help: 'Mails that wait to be sent, including retries',
      registers,
    });
    this.#pool = new Gauge({
      name: 'berth_database_connections',
      help: "This process's pool: connections in use, idle connections, and waiting callers",
      labelNames: ['state'] as const,
      registers,
    });
    this.#of_vms = Object.entries(VM_GAUGES).map(([name, [help, read]]) => [
      new Gauge({ name, help, labelNames: ['instance_id'] as const, registers }),
      read,
    ]);
  }

  /** Where the database is unavailable, `berth_ready` says so, and the gauges of the installation have no values. */
  async read(): Promise<void> {
    const { db } = this.#context;
    for (const gauge of [this.#vms, ...this.#of_vms.map(([each]) => each)]) gauge.reset();
    for (const gauge of [this.#execs, this.#flushes, this.#deliveries, this.#mails]) gauge.remove();
    for (const [state, count] of Object.entries<number>(poolState(db))) this.#pool.set({ state }, count);
    if (!(await this.#fleet.read(db))) return;
    const [states, flushes, deliveries, mails, digests] = await Promise.all([
      countVmStates(db),
      countOpenFlushes(db),
      countPendingDeliveries(db),
      countMails(db),
      countDigests(db),
      this.#readVms(),
    ]);
    for (const [state, count] of states) this.#vms.set({ state }, count);
    this.#execs.set(await countAllRunning(db));
    this.#flushes.set(flushes);
    this.#deliveries.set(deliveries);
    this.#mails.set(mails + digests);
  }

  /** Without the VMs of hosts that do not answer. */
  async #readVms(): Promise<void> {
    const { db, host_calls } = this.#context;
    const signal = AbortSignal.timeout(USAGE_WITHIN_MS);
    const hosts = await listLiveHosts(db);
    const answers = await Promise.allSettled(
      hosts.map(({ id }) => host_calls.ask<UsageResult>(id, { kind: 'usage' }, USAGE_WITHIN_MS, signal)),
    );
    // A host reports only for the VMs that are on it.
    const places = new Map((await listActive(db)).map((vm) => [vm.instance_id, vm.host_id]));
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
