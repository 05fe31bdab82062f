/** What a scrape reads of the installation's parts and hosts: what an operator is alerted of. */
import { Gauge, type Registry } from 'prom-client';
import type { Db } from '../db/pool.ts';
import { listFleet } from '../fleet/fleet-store.ts';
import { capacityOf } from '../fleet/host-store.ts';
import { HOST_STATES, hostState, isOfFleet } from '../fleet/place.ts';
import { maxUnsavedSeconds } from '../vms/store.ts';
import { readiness } from './health.ts';

const BYTES_A_MIB = 2 ** 20;

export class FleetMetrics {
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
