/**
 * The SSH ingress: listens on every instance's SSH address, and splices each connection to the sshd of the instance's
 * VM without reading the session. It requests the start of VMs that connections wait for, and reports which ports are
 * in use.
 *
 * It stores nothing. Routes come from the control plane by long poll, and the last ones stay in use while the control
 * plane is unreachable. A connection survives a change of routes, and ends with its VM.
 */
import { BATCHES, BatchSender } from '../protocol/batches.ts';
import type { ControlPlaneClient } from '../protocol/client.ts';
import type { IngressRoute, RoutesRequest, RoutesResponse } from '../protocol/ingress-types.ts';
import type { ConnectionBudgetOptions } from '../shared/connection-budget.ts';
import { errnoOf, messageOf } from '../shared/errors.ts';
import type { InstanceId } from '../shared/ids.ts';
import type { Log } from '../shared/log.ts';
import { pause } from '../shared/retry.ts';
import { listenAddress, type SshListen } from '../shared/setting-values.ts';
import { untrustedText } from '../shared/untrusted-text.ts';
import { dialBy } from './dial.ts';
import { InstancePort } from './instance-port.ts';
import { type IngressLimits, LIMITS, Totals } from './limits.ts';
import { type RouteChange, RouteFollower } from './route-follower.ts';

/** A newly used port is reported soon. The delay coalesces several. */
const SOON_MS = 100;

/** A port of an instance: SSH or HTTP. */
export interface UsedPort {
  readonly route: { readonly instance_id: InstanceId };
  /** On the clock of `performance.now()`; null: never. */
  lastUsed(now_ms: number): number | null;
}

/** Reports to the control plane which ports are in use. A failed report is included in the next one. */
class ActivityReporter {
  readonly #client: Pick<ControlPlaneClient, 'reportActivity'>;
  readonly #sender: BatchSender<typeof BATCHES.activity.item>;
  readonly #ports: () => Iterable<UsedPort>;
  readonly #watching_since = performance.now();
  readonly #every_ms: number;
  #reported_until = Number.NEGATIVE_INFINITY;
  #report_soon = new AbortController();

  constructor(
    { client, log }: { readonly client: Pick<ControlPlaneClient, 'reportActivity'>; readonly log: Log },
    ports: () => Iterable<UsedPort>,
    every_ms: number,
  ) {
    this.#every_ms = every_ms;
    this.#client = client;
    this.#sender = new BatchSender(BATCHES.activity, log);
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
    const agos = new Map<InstanceId, number>();
    for (const port of this.#ports()) {
      const used_ms = port.lastUsed(now_ms);
      if (used_ms === null || used_ms < this.#reported_until) continue;
      const ago_ms = Math.max(0, Math.round(now_ms - used_ms));
      const { instance_id } = port.route;
      agos.set(instance_id, Math.min(ago_ms, agos.get(instance_id) ?? ago_ms));
    }
    const used = [...agos].map(([instance_id, ago_ms]) => ({ instance_id, ago_ms }));
    const watched_ms = Math.round(now_ms - this.#watching_since);
    await this.#sender.send(used, {
      post: (active) => this.#client.reportActivity({ watched_ms, active }, signal),
    });
    this.#reported_until = now_ms;
  }
}

/** A wake is repeated: the VM's stop may have to end first, or the control plane was unreachable. */
const WAKE_EVERY_MS = 1_000;
/** Another program that has an instance's port may release it. */
const REOPEN_MS = 2_000;
/** Time for buffered data to be sent before the process ends. */
const CLOSE_MS = 1_000;

const IN_USE = 'another program uses the port, or another name listens there';

function addressOf({ host, port }: Pick<IngressRoute, 'host' | 'port'>): string {
  return `${host}:${port}`;
}

export class Ingress {
  /** By SSH address. */
  readonly #ports = new Map<string, InstancePort>();
  readonly #blocked = new Map<string, { readonly route: IngressRoute; readonly problem: string }>();
  /** The routes in use. */
  readonly #routes = new Map<InstanceId, IngressRoute>();
  readonly #waking = new Set<InstancePort>();
  readonly #totals: Totals;
  readonly #closing = new AbortController();
  readonly #follower: RouteFollower<IngressRoute>;
  readonly #activity: ActivityReporter;
  readonly #limits: IngressLimits;
  readonly #listen: SshListen;
  readonly #client: ControlPlaneClient;
  readonly #log: Log;

  constructor(options: {
    listen: SshListen;
    client: ControlPlaneClient;
    log: Log;
    limits?: Partial<IngressLimits>;
    by_source?: Omit<ConnectionBudgetOptions, 'most'>;
    /** Ports of other protocols, whose use counts too. */
    others?: () => Iterable<UsedPort>;
  }) {
    const { client, log } = options;
    this.#listen = options.listen;
    this.#client = client;
    this.#log = log;
    this.#limits = { ...LIMITS, ...options.limits };
    this.#totals = new Totals(this.#limits, options.by_source);
    const blocked_addresses = new BatchSender(BATCHES.routes, log);
    this.#follower = new RouteFollower({
      ask: async (asked, signal) => {
        let answer: RoutesResponse | undefined;
        await blocked_addresses.send(asked.at_once ? [] : this.#blockedAddresses(), {
          post: async (blocked) => {
            answer = await client.routes({ ...asked, blocked }, signal);
          },
        });
        if (!answer) throw new Error('the control plane refuses to say the routes');
        return answer;
      },
      apply: (change) => this.#apply(change),
      log,
    });
    const ports = () => [...this.#ports.values(), ...(options.others?.() ?? [])];
    this.#activity = new ActivityReporter({ client, log }, ports, this.#limits.report_ms);
  }

  /** A port of another protocol came into use. */
  noteActive(): void {
    this.#activity.reportSoon();
  }

  /** Follows the routes until `signal` aborts, then closes every port. */
  async run(signal: AbortSignal): Promise<void> {
    const beside = [this.#activity.run(signal), this.#reopen(signal)];
    await this.#follower.run(signal);
    await Promise.all([this.close(), ...beside]);
  }

  async #reopen(signal: AbortSignal): Promise<void> {
    while (await pause(REOPEN_MS, signal)) {
      await this.#follower.inTurn(async () => {
        for (const { route } of [...this.#blocked.values()]) await this.#open(route);
      });
    }
  }

  /** For tests, in place of {@link run}: opens, updates and closes ports to match `routes`, after all earlier calls. */
  apply(routes: readonly IngressRoute[]): Promise<void> {
    return this.#follower.apply({ etag: null, routes });
  }

  async #apply({ changed, routes }: RouteChange<IngressRoute>): Promise<void> {
    const wanted = new Map(
      routes
        .filter(({ host }) => listenAddress(this.#listen, host) !== null)
        .map((route) => [addressOf(route), route]),
    );
    for (const id of changed ?? [...this.#routes.keys()]) {
      const before = this.#routes.get(id);
      this.#routes.delete(id);
      if (before && wanted.get(addressOf(before))?.instance_id !== id) this.#release(addressOf(before));
    }
    for (const [address, route] of wanted) {
      this.#routes.set(route.instance_id, route);
      const port = this.#ports.get(address);
      if (port) port.update(route);
      else await this.#open(route);
    }
  }

  #release(address: string): void {
    this.#ports.get(address)?.destroy();
    this.#ports.delete(address);
    this.#blocked.delete(address);
  }

  #blockedAddresses(): RoutesRequest['blocked'] {
    return [...this.#blocked.values()].map(({ route: { host, port }, problem }) => ({ host, port, problem }));
  }

  /** Accepts no more connections, and ends the open ones after at most a second. */
  async close(): Promise<void> {
    this.#closing.abort();
    const ports = [...this.#ports.values()];
    this.#ports.clear();
    await Promise.race([Promise.all(ports.map((port) => port.close())), pause(CLOSE_MS)]);
    for (const port of ports) port.destroy();
  }

  async #open(route: IngressRoute): Promise<void> {
    const port = new InstancePort(route, {
      limits: this.#limits,
      totals: this.#totals,
      log: this.#log,
      dial: dialBy(this.#client),
      events: {
        waiting: (waiting) => void this.#wake(waiting),
        active: () => this.#activity.reportSoon(),
        refresh: () => this.#follower.refresh(),
      },
    });
    const address = addressOf(route);
    const local = listenAddress(this.#listen, route.host) ?? route.host;
    try {
      await port.listen(local);
      if (this.#closing.signal.aborted) return port.destroy();
      this.#ports.set(address, port);
      this.#blocked.delete(address);
    } catch (error) {
      port.destroy();
      this.#block(route, local, errnoOf(error) === 'EADDRINUSE' ? IN_USE : messageOf(error));
    }
  }

  #block(route: IngressRoute, local: string, problem: string): void {
    const { host, port, instance_id } = route;
    const address = addressOf(route);
    if (!this.#blocked.has(address))
      this.#log.error(
        { host, port, instance_id },
        `SSH port ${port} cannot be opened at ${local}: ${problem}`,
      );
    this.#blocked.set(address, { route, problem: untrustedText(problem) });
  }

  /** Requests the VM's start while connections wait. A new route ends the wait. */
  async #wake(port: InstancePort): Promise<void> {
    if (this.#waking.has(port)) return;
    this.#waking.add(port);
    const { signal } = this.#closing;
    const { instance_id } = port.route;
    this.#log.info({ instance_id }, 'a connection wakes its VM');
    while (port.waiting && !signal.aborted) {
      try {
        const answer = await this.#client.wake({ instance_id }, signal);
        if (answer.outcome === 'refused') {
          this.#log.warn({ instance_id, why: answer.why }, 'the VM is not woken; its connections are closed');
          port.refuse();
        }
      } catch (error) {
        this.#log.debug(
          { instance_id, reason: messageOf(error) },
          'the control plane did not answer the wake',
        );
      }
      if (port.waiting) await pause(WAKE_EVERY_MS, signal);
    }
    this.#waking.delete(port);
  }
}
