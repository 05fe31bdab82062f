/**
 * Serves metrics for Prometheus on their own listener (`BERTH_METRICS_LISTEN`). The listener needs no credential,
 * because the metrics contain ids and numbers, but no content of an instance.
 *
 * - Counters cover this process. Gauges are read at each scrape and cover the whole installation.
 * - Labels are bounded: routes, statuses, states, and running instances.
 */
import Fastify, { type FastifyInstance, LogController } from 'fastify';
import { Counter, collectDefaultMetrics, Gauge, Histogram, Registry } from 'prom-client';
import type { UsageResult, VmSample } from '../../protocol/host-calls.ts';
import { type HttpReport, STATUS_CLASSES } from '../../protocol/ingress-types.ts';
import type { AppContext } from '../context.ts';
import { type Db, poolState } from '../db/pool.ts';
import { countAllRunning } from '../execs/store.ts';
import { listFleet } from '../fleet/fleet-store.ts';
import { capacityOf, listLiveHosts } from '../fleet/host-store.ts';
import { HOST_STATES, hostState, isOfFleet } from '../fleet/place-vm.ts';
import { endConnectionsAtClose } from '../http/connections.ts';
import { sendError } from '../http/errors.ts';
import { KnownHosts, registerKnownHosts } from '../http/server.ts';
import { countMails } from '../mail/store.ts';
import { countDigests } from '../notifications/store.ts';
import { countOpenFlushes, countVmStates, listActive, maxUnsavedSeconds } from '../vms/store.ts';
import { countPendingDeliveries } from '../webhooks/store.ts';
import { readiness } from './health.ts';

const BYTES_A_MIB = 2 ** 20;

/** Gauges of the installation's parts and hosts, by which an operator is alerted. */
class FleetMetrics {
  readonly #ready: Gauge<'part'>;
  readonly #hosts: Gauge<'state'>;
  readonly #seen: Gauge<'host'>;
  readonly #store: Gauge<'host'>;
  readonly #memory: Gauge<'host' | 'kind'>;
  readonly #unsaved: Gauge;

  constructor(registry: Registry) {
    const registers = [registry];
    this.#ready = new Gauge({
      name: 'berth_ready',
      help: '1 where a part of the installation is usable, as /readyz says it, else 0',
      labelNames: ['part'] as const,
      registers,
    });
    this.#hosts = new Gauge({
      name: 'berth_hosts',
      help: 'Hosts by state, as berth host ls shows it',
      labelNames: ['state'] as const,
      registers,
    });
    this.#seen = new Gauge({
      name: 'berth_host_silent_seconds',
      help: "Time since a host's last report",
      labelNames: ['host'] as const,
      registers,
    });
    this.#store = new Gauge({
      name: 'berth_host_object_store',
      help: '1 where the object store works for a host, else 0; only of hosts that report',
      labelNames: ['host'] as const,
      registers,
    });
    this.#memory = new Gauge({
      name: 'berth_host_memory_bytes',
      help: 'Memory of a host: usable by VMs, and promised to its VMs; only of hosts that take VMs',
      labelNames: ['host', 'kind'] as const,
      registers,
    });
    this.#unsaved = new Gauge({
      name: 'berth_unsaved_seconds',
      help: 'Time since the last durable generation, the longest of running VMs with unsaved data and an automatic flush at least every 5 minutes',
      registers,
    });
  }

  /** Whether the database answers. Without it, only `berth_ready` has values. */
  async read(db: Db): Promise<boolean> {
    for (const gauge of [this.#hosts, this.#seen, this.#store, this.#memory]) gauge.reset();
    this.#unsaved.remove();
    const parts = await readiness({ db });
    for (const [part, { ok }] of Object.entries(parts)) this.#ready.set({ part }, ok ? 1 : 0);
    // A full disk leaves a database that still answers.
    if (parts.database.problem === 'not reachable') return false;
    await Promise.all([this.#readHosts(db), this.#readUnsaved(db)]);
    return true;
  }

  async #readHosts(db: Db): Promise<void> {
    const now = Date.now();
    for (const state of HOST_STATES) this.#hosts.set({ state }, 0);
    for (const host of (await listFleet(db)).filter(isOfFleet)) {
      const state = hostState(host, now);
      this.#hosts.inc({ state });
      const { name, facts, last_seen_at } = host;
      if (last_seen_at === null || facts === null) continue;
      this.#seen.set({ host: name }, Math.max(0, now - last_seen_at.getTime()) / 1000);
      if (state === 'silent' || state === 'lost') continue;
      this.#store.set({ host: name }, facts.object_store_problem === null ? 1 : 0);
      const capacity = capacityOf({ ...host, facts });
      if (state !== 'up' || capacity === null) continue;
      this.#memory.set({ host: name, kind: 'usable' }, capacity.memory_mib * BYTES_A_MIB);
      this.#memory.set({ host: name, kind: 'promised' }, host.used_memory_mib * BYTES_A_MIB);
    }
  }

  async #readUnsaved(db: Db): Promise<void> {
    this.#unsaved.set(await maxUnsavedSeconds(db));
  }
}

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

/** Sums over all HTTP ports of what ingresses report: a port would be an unbounded label. */
class PortMetrics {
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
