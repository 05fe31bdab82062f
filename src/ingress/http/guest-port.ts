/**
 * One published HTTP port, as the ingress sees it. It connects to the program in the guest, wakes the VM and lets
 * requests wait for it, tracks the exchanges (request and response) that are in progress, and counts the port's use.
 *
 *   waiting ──VM runs, program listens──▶ connection pool ─▶ exchange ─▶ over
 *      └──wake off or refused, too many wait, nothing listens, two minutes──▶ refusal (502, 503)
 *
 * Its requests share a connection pool (a `Way`). The pool belongs to one boot of the guest: after a reset or stop of
 * the VM the next request opens another pool. No two ports share a connection. A request is sent at most once: only a
 * failed dial is repeated.
 */
import { Agent } from 'node:http';
import type { Duplex } from 'node:stream';
import type { ControlPlaneClient } from '../../protocol/client.ts';
import { notListeningMessage } from '../../protocol/host-calls.ts';
import type { HttpRoute } from '../../protocol/ingress-types.ts';
import { Signal } from '../../shared/concurrency.ts';
import { messageOf } from '../../shared/errors.ts';
import type { Log } from '../../shared/log.ts';
import { pause } from '../../shared/retry.ts';
import { untrustedText } from '../../shared/untrusted-text.ts';
import { dialPort, openTunnel } from '../dial.ts';
import type { HttpLimits } from '../limits.ts';
import type { Exchange } from './exchange.ts';
import { badGateway, type Refusal, unavailable } from './refusal.ts';

const WAKE_EVERY_MS = 1_000;
const AGAIN_MS = 150;

/** No byte has reached the guest. */
export class DialError extends Error {
  override name = 'DialError';
}

export interface Way {
  /** Keeps connections for the next request. */
  readonly agent: Agent;
  /** A connection that nobody else uses. @throws DialError */
  dial(): Promise<Duplex>;
}

export interface PortContext {
  readonly client: Pick<ControlPlaneClient, 'wake' | 'openPort' | 'openTunnel'>;
  readonly limits: HttpLimits;
  readonly log: Log;
  readonly closing: AbortSignal;
  /** Over all ports. */
  readonly totals: { waiting: number };
  readonly refresh: () => Promise<void>;
  readonly active: () => void;
}

export interface PortUse {
  requests: number;
  sent_bytes: number;
  received_bytes: number;
  last_error: { at: string; code: string; message: string } | null;
}

export class GuestPort {
  readonly #context: PortContext;
  #route: HttpRoute;
  /** Of the route, and refusals to wake the VM. */
  readonly #changes = new Signal();
  #way: Promise<OpenedWay | NoWay> | null = null;
  /** When the ingress saw the guest start; null: it ran before. */
  #reachable_since_ms: number | null = null;
  #waiting = 0;
  #waking = false;
  #refused: string | null = null;
  #last_used_ms: number | null = null;
  readonly exchanges = new Set<Exchange>();
  use: PortUse = { requests: 0, sent_bytes: 0, received_bytes: 0, last_error: null };

  constructor(route: HttpRoute, context: PortContext) {
    this.#route = route;
    this.#context = context;
  }

  get route(): HttpRoute {
    return this.#route;
  }
  get waiting(): number {
    return this.#waiting;
  }

  /** When it was last in use (`now_ms` if it is), on the clock of `performance.now()`; null: never. */
  lastUsed(now_ms: number): number | null {
    return this.exchanges.size > 0 ? now_ms : this.#last_used_ms;
  }

  begin(exchange: Exchange): void {
    this.exchanges.add(exchange);
    this.use.requests += 1;
    if (this.exchanges.size === 1) this.#context.active();
  }

  end(exchange: Exchange): void {
    if (this.exchanges.delete(exchange)) this.#last_used_ms = performance.now();
  }

  /** Exchanges with an earlier boot of the guest end. */
  update(route: HttpRoute): void {
    const before = this.#route;
    this.#route = route;
    if (before.resets !== route.resets || before.target !== route.target) {
      this.#dropWay();
      if (route.target !== null) this.#reachable_since_ms = performance.now();
      // A guest that shuts down still answers what it has begun.
      if (before.resets !== route.resets) for (const each of this.exchanges) each.guestReset();
    }
    this.#changes.notify();
  }

  /** The port is gone. */
  destroy(): void {
    this.#dropWay();
    for (const each of this.exchanges) each.end();
    this.#changes.notify();
  }

  noteError({ code, message }: Refusal): void {
    this.use.last_error = { at: new Date().toISOString(), code, message: untrustedText(message) };
  }

  /** A way to a program that listens, once the VM runs. @throws Refusal 502, 503 */
  async way(signal: AbortSignal): Promise<Way> {
    const { limits } = this.#context;
    const deadline_ms = performance.now() + limits.wake_ms;
    if (this.#route.target === null && !this.#route.wake) await this.#context.refresh();
    let waited = false;
    for (;;) {
      signal.throwIfAborted();
      if (performance.now() > deadline_ms)
        throw unavailable('The VM was not ready within two minutes. See its console log: berth logs');
      if (this.#route.target === null) {
        waited = true;
        await this.#wait(signal, deadline_ms - performance.now());
        continue;
      }
      const way = await this.#open();
      if (way.outcome === 'open') return way;
      if (way.outcome === 'not_listening' && !this.#isSettling(waited)) {
        throw badGateway(notListeningMessage(this.#route.port));
      }
      await pause(AGAIN_MS, signal);
    }
  }

  /** The way was no longer there: it is asked for again. */
  lost(way: Way): void {
    void this.#way?.then((known) => {
      if (known === way) this.#dropWay();
    });
  }

  #isSettling(waited: boolean): boolean {
    if (!waited && !this.#route.wake) return false;
    const since_ms = this.#reachable_since_ms;
    return since_ms !== null && performance.now() - since_ms < this.#context.limits.settling_ms;
  }

  /** Until the route changes. @throws Refusal 503 */
  async #wait(signal: AbortSignal, left_ms: number): Promise<void> {
    const { limits, totals } = this.#context;
    if (!this.#route.wake)
      throw unavailable(
        'The VM is not running. Start it with berth start, or let requests start it with berth set --wake.',
      );
    const no_room = totals.waiting >= limits.waiting && this.#waiting >= limits.assured_waiting;
    if (this.#waiting >= limits.waiting_per_instance || no_room)
      throw unavailable('Too many requests wait for the VM. Try again when it runs.');
    this.#waiting += 1;
    totals.waiting += 1;
    const { count: since } = this.#changes;
    const over = AbortSignal.timeout(Math.max(1, Math.ceil(left_ms)));
    try {
      void this.#wake();
      await this.#changes.wait({ since, signal: AbortSignal.any([signal, over]) });
    } finally {
      this.#waiting -= 1;
      totals.waiting -= 1;
    }
    if (this.#refused !== null && this.#route.target === null)
      throw unavailable(`The VM cannot be started: ${this.#refused}.`);
  }

  /** Requests the VM's start while requests wait. */
  async #wake(): Promise<void> {
    if (this.#waking) return;
    this.#waking = true;
    this.#refused = null;
    const { client, closing, log } = this.#context;
    const { instance_id } = this.#route;
    while (this.#waiting > 0 && this.#route.target === null && !closing.aborted) {
      const { count: since } = this.#changes;
      try {
        const answer = await client.wake({ instance_id }, closing);
        if (answer.outcome === 'refused') {
          log.warn({ instance_id, why: answer.why }, 'the VM is not woken for a request');
          this.#refused = answer.why;
          this.#changes.notify();
          break;
        }
      } catch (error) {
        log.debug({ instance_id, reason: messageOf(error) }, 'the control plane did not answer the wake');
      }
      const again = AbortSignal.timeout(WAKE_EVERY_MS);
      await this.#changes.wait({ since, signal: AbortSignal.any([closing, again]) });
    }
    this.#waking = false;
  }

  /** Requests share an opening, whatever its outcome. */
  #open(): Promise<OpenedWay | NoWay> {
    if (this.#way) return this.#way;
    const opening: Promise<OpenedWay | NoWay> = this.#openNow().then(
      (found) => {
        if (found.outcome !== 'open' && this.#way === opening) this.#way = null;
        return found;
      },
      () => {
        if (this.#way === opening) this.#way = null;
        // The control plane or the host's agent may be restarting.
        return { outcome: 'not_running' };
      },
    );
    this.#way = opening;
    return opening;
  }

  async #openNow(): Promise<OpenedWay | NoWay> {
    const { client, limits, closing } = this.#context;
    const { target, instance_id, port } = this.#route;
    // Also for a VM on another host, whose address leads nowhere from here: does its program listen?
    const found = await client.openPort({ instance_id, port }, closing);
    if (found.outcome !== 'open') return found;
    const dial =
      target === 'tunnel'
        ? () => openTunnel(client, instance_id, port)
        : () => dialPort(found.address, limits.dial_ms);
    return new OpenedWay(dial, limits);
  }

  #dropWay(): void {
    const way = this.#way;
    this.#way = null;
    // Connections in use stay.
    void way?.then((found) => {
      if (found.outcome === 'open') found.agent.closeIdle();
    });
  }
}

interface NoWay {
  readonly outcome: 'not_running' | 'not_listening';
}
class OpenedWay implements Way {
  readonly outcome = 'open';
  readonly agent: GuestAgentPool;
  readonly #dial: () => Promise<Duplex>;

  constructor(dial: () => Promise<Duplex>, limits: HttpLimits) {
    this.#dial = dial;
    this.agent = new GuestAgentPool(() => this.dial(), limits);
  }

  async dial(): Promise<Duplex> {
    try {
      return await this.#dial();
    } catch (error) {
      throw new DialError(messageOf(error), { cause: error });
    }
  }
}

/** Node's pool of connections, over ours. */
class GuestAgentPool extends Agent {
  readonly #dial: () => Promise<Duplex>;

  constructor(dial: () => Promise<Duplex>, limits: HttpLimits) {
    super({
      keepAlive: true,
      maxSockets: limits.guest_connections,
      maxFreeSockets: limits.guest_connections,
      timeout: limits.guest_idle_ms,
      scheduling: 'lifo',
    });
    this.#dial = dial;
  }

  override createConnection(
    _options: object,
    callback?: (error: Error | null, stream: Duplex) => void,
  ): undefined {
    this.#dial().then(
      (stream) => callback?.(null, stream),
      (error: Error) => callback?.(error, undefined as unknown as Duplex),
    );
  }

  closeIdle(): void {
    for (const sockets of Object.values(this.freeSockets)) for (const each of sockets ?? []) each.destroy();
    // Those in use are not kept afterwards.
    this.maxFreeSockets = 0;
  }
}
