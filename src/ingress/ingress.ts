/**
 * Listens on every instance's SSH address and splices connections to the VM's sshd, without reading the session. It has no
 * state of its own: routes come from the control plane by long poll, and the last ones stay in use while the control plane is
 * unreachable. Connections survive a change of routes, and end with their VM.
 *
 * It requests the start of VMs that connections wait for, and reports which ports are in use.
 */
import type { ControlPlaneClient } from '../agent-api/client.ts';
import type { IngressRoute, RoutesRequest } from '../agent-api/ingress-types.ts';
import { backoffMs, pause } from '../lib/backoff.ts';
import { errnoOf, messageOf } from '../lib/errors.ts';
import type { Log } from '../lib/log.ts';
import { listenAddress, type SshListen } from '../lib/ssh-listen.ts';
import { untrustedText } from '../lib/untrusted-text.ts';
import { ActivityReporter, type UsedPort } from './activity.ts';
import { dialBy } from './dial.ts';
import { InstancePort } from './instance-port.ts';
import { type IngressLimits, LIMITS, Totals } from './limits.ts';

/** A wake is repeated: the VM's stop may have to end first, or the control plane was unreachable. */
const WAKE_EVERY_MS = 1_000;
/** A connection to a port without a target refreshes the routes, for this long at most. */
const REFRESH_MS = 1_000;
const REFRESH_GAP_MS = 50;
/** The pause after a refresh, as a multiple of its duration: connections to closed ports cost a bounded share of the time. */
const REFRESH_REST = 4;
/** Another program that has an instance's port may release it. */
const REOPEN_MS = 2_000;
/** Time for buffered data to be sent before the process ends. */
const CLOSE_MS = 1_000;

const IN_USE = 'another program uses the port, or another name listens there';

type BlockedAddress = RoutesRequest['blocked'][number];

function addressOf({ host, port }: Pick<IngressRoute, 'host' | 'port'>): string {
  return `${host}:${port}`;
}

export class Ingress {
  /** By SSH address. */
  readonly #ports = new Map<string, InstancePort>();
  readonly #blocked = new Map<string, BlockedAddress>();
  readonly #waking = new Set<InstancePort>();
  readonly #totals = new Totals();
  readonly #closing = new AbortController();
  /** The routes in use, and their etag. */
  #routes: readonly IngressRoute[] = [];
  #seen: string | null = null;
  /** Ends the poll under way. */
  #polling = new AbortController();
  /** Serialises the application of routes. */
  #applying: Promise<void> = Promise.resolve();
  /** How many answers were applied or queued. */
  #answers = 0;
  /** Resolves when the next refresh may begin. */
  #rest: Promise<unknown> = Promise.resolve();
  #next_refresh: Promise<void> | null = null;
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
    /** Ports of other protocols, whose use counts too. */
    others?: () => Iterable<UsedPort>;
  }) {
    this.#listen = options.listen;
    this.#client = options.client;
    this.#log = options.log;
    this.#limits = { ...LIMITS, ...options.limits };
    const ports = () => [...this.#ports.values(), ...(options.others?.() ?? [])];
    this.#activity = new ActivityReporter(options.client, ports, this.#limits.report_ms);
  }

  /** A port of another protocol came into use. */
  noteActive(): void {
    this.#activity.reportSoon();
  }

  /** Follows the routes until `signal` aborts, then closes every port. */
  async run(signal: AbortSignal): Promise<void> {
    const beside = [this.#activity.run(signal), this.#reopen(signal)];
    for (let failures = 0; !signal.aborted; ) {
      const polling = new AbortController();
      this.#polling = polling;
      try {
        const blocked = [...this.#blocked.values()];
        const either = AbortSignal.any([signal, polling.signal]);
        const { routes, etag } = await this.#client.routes({ seen: this.#seen, blocked }, either);
        failures = 0;
        await this.apply(routes, etag);
      } catch (error) {
        if (signal.aborted) break;
        if (polling.signal.aborted) continue;
        if (failures === 6) {
          this.#log.warn(
            { reason: messageOf(error) },
            'the control plane is unreachable; the last routes stay in use',
          );
        }
        await pause(backoffMs(failures++, 100, 2_000), signal);
      }
    }
    await Promise.all([this.close(), ...beside]);
  }

  async #reopen(signal: AbortSignal): Promise<void> {
    while (await pause(REOPEN_MS, signal)) {
      if (this.#blocked.size > 0) await this.#inTurn(() => this.#apply(this.#routes));
    }
  }

  /** Opens, updates and closes ports to match `routes`, after all earlier calls. */
  apply(routes: readonly IngressRoute[], etag: string | null = null): Promise<void> {
    this.#answers += 1;
    return this.#inTurn(async () => {
      this.#routes = routes;
      await this.#apply(routes);
      this.#seen = etag;
    });
  }

  #inTurn(work: () => Promise<void>): Promise<void> {
    const turn = this.#applying.then(work);
    this.#applying = turn.catch(() => undefined);
    return turn;
  }

  async #apply(routes: readonly IngressRoute[]): Promise<void> {
    const served = routes.filter(({ host }) => listenAddress(this.#listen, host) !== null);
    const wanted = new Set(served.map(addressOf));
    for (const [address, port] of this.#ports) {
      if (wanted.has(address)) continue;
      this.#ports.delete(address);
      port.destroy();
    }
    for (const address of this.#blocked.keys()) if (!wanted.has(address)) this.#blocked.delete(address);
    for (const route of served) {
      const port = this.#ports.get(addressOf(route));
      if (!port) await this.#open(route);
      else if (port.route.instance_id === route.instance_id) port.update(route);
      else {
        port.destroy();
        await this.#open(route);
      }
    }
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
        refresh: () => this.#refresh(),
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
      this.#ports.delete(address);
      this.#block(route, local, errnoOf(error) === 'EADDRINUSE' ? IN_USE : messageOf(error));
    }
  }

  /** Reads the routes again. Callers that wait for the next reading share it. */
  #refresh(): Promise<void> {
    this.#next_refresh ??= this.#refreshAfterRest();
    return this.#next_refresh;
  }

  async #refreshAfterRest(): Promise<void> {
    await this.#rest;
    this.#next_refresh = null;
    const began_ms = performance.now();
    const reading = this.#readRoutes();
    this.#rest = reading.then(() => {
      const rest_ms = Math.max(REFRESH_GAP_MS, REFRESH_REST * (performance.now() - began_ms));
      return pause(rest_ms, this.#closing.signal);
    });
    await reading;
  }

  async #readRoutes(): Promise<void> {
    const bounded = AbortSignal.any([this.#closing.signal, AbortSignal.timeout(REFRESH_MS)]);
    try {
      for (;;) {
        const before = this.#answers;
        const { routes, etag } = await this.#client.routes({ seen: null, blocked: [] }, bounded);
        // A poll was answered meanwhile, and may be newer than this.
        if (this.#answers !== before) continue;
        const polled = this.#seen;
        await this.apply(routes, etag);
        // The poll under way waits for a change from the older routes: restart it.
        if (etag !== polled) this.#polling.abort();
        return;
      }
    } catch {
      // The control plane is unreachable: the last routes stay in use.
    }
  }

  #block({ host, port, instance_id }: IngressRoute, local: string, problem: string): void {
    const address = addressOf({ host, port });
    if (!this.#blocked.has(address))
      this.#log.error(
        { host, port, instance_id },
        `SSH port ${port} cannot be opened at ${local}: ${problem}`,
      );
    this.#blocked.set(address, { host, port, problem: untrustedText(problem) });
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
