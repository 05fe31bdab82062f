/**
 * One instance's port and its connections. A connection is
 *
 *   held ──target──▶ spliced ──▶ closed
 *     └──no way, too long──▶ closed
 *
 * held while the VM is being woken, or while a revocation is not confirmed: nobody gets through to a guest that may
 * still let in a revoked key. When the confirmation does not come in time, all connections of the instance end, and
 * the port takes none until it comes. Held also until the guest lets in a key that was added, but for that nobody is
 * turned away or waits for longer than `settling_ms`.
 *
 * A guest that was reset tells nobody, and QEMU holds its connections: each reset ends those that were there before it.
 */
import { createServer, type Server, type Socket } from 'node:net';
import type { IngressRoute } from '../agent-api/ingress-types.ts';
import type { Log } from '../lib/log.ts';
import { type Dial, dialPort } from './dial.ts';
import { HeldSocket } from './held-socket.ts';
import type { IngressLimits, Totals } from './limits.ts';
import { Newcomers } from './newcomers.ts';
import { splice } from './splice.ts';

export interface PortEvents {
  /** A connection waits for a VM that does not run. */
  readonly waits: (port: InstancePort) => void;
  /** The first connection since there was none. */
  readonly active: () => void;
  /** Resolves when the routes are as new as this call, or could not be had. */
  readonly look: () => Promise<void>;
}

export class InstancePort {
  readonly #limits: IngressLimits;
  readonly #totals: Totals;
  readonly #events: PortEvents;
  readonly #dial: Dial;
  readonly #log: Log;
  readonly #server: Server;
  readonly #sockets = new Set<Socket>();
  readonly #newcomers: Newcomers;
  readonly #held = new Set<HeldSocket>();
  readonly #spliced = new Set<Socket>();
  #route: IngressRoute;
  #revoking: NodeJS.Timeout | null = null;
  #unconfirmed = false;
  #settling: NodeJS.Timeout | null = null;
  /** The guest has had its time for the keys that were added. */
  #settled_late = false;
  /** Connections that have said something, and when the last such one ended. */
  #speaking = 0;
  #last_spoke_ms: number | null = null;

  constructor(
    route: IngressRoute,
    options: { limits: IngressLimits; totals: Totals; events: PortEvents; log: Log; dial?: Dial },
  ) {
    this.#limits = options.limits;
    this.#totals = options.totals;
    this.#events = options.events;
    this.#newcomers = new Newcomers(options.limits, options.totals);
    this.#dial = options.dial ?? dialPort;
    this.#log = options.log.child({ instance_id: route.instance_id, port: route.port });
    this.#route = route;
    // Half-open: what one side still sends after the other has ended its own sending gets through.
    this.#server = createServer({ noDelay: true, pauseOnConnect: true, allowHalfOpen: true });
    this.#server.on('connection', (socket) => this.#take(socket));
    this.update(route);
  }

  get route(): IngressRoute {
    return this.#route;
  }
  /** Connections wait here for a VM that does not run. */
  get waiting(): boolean {
    return this.#held.size > 0 && this.#route.target === null;
  }

  /** When a connection was last in use, on the clock of `performance.now()`; null: never. One that is open is now. */
  lastUsed(now_ms: number): number | null {
    return this.#speaking > 0 ? now_ms : this.#last_spoke_ms;
  }

  /** @throws the listener's error */
  listen(host: string): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#server.once('error', reject);
      this.#server.listen({ host, port: this.#route.port, exclusive: true }, () => {
        this.#server.off('error', reject);
        this.#server.on('error', (error) => this.#log.warn({ err: error }, 'listener'));
        resolve();
      });
    });
  }

  /** Connections that are open stay, but for a reset; those that wait go on, or are closed, as the route says now. */
  update(route: IngressRoute): void {
    if (route.resets !== this.#route.resets) for (const socket of this.#spliced) socket.destroy();
    this.#route = route;
    if (route.revoking)
      this.#revoking ??= setTimeout(() => this.#closeUnconfirmed(), this.#limits.revoking_ms);
    else this.#confirmed();
    if (route.settling) this.#settling ??= setTimeout(() => this.#waitNoMore(), this.#limits.settling_ms);
    else this.#settled();
    this.#moveOn();
  }

  #moveOn(): void {
    for (const held of [...this.#held]) {
      const way = this.#way();
      if (way === 'closed') this.#drop(held);
      else if (way !== 'wait') this.#splice(this.#letGo(held).release(), way);
    }
    if (this.waiting) this.#events.waits(this);
  }

  /** The VM does not come up for those who wait. */
  refuse(): void {
    for (const held of [...this.#held]) this.#drop(held);
  }

  /** Takes no more and ends all, what is on its way first; resolves when they are gone. */
  async close(): Promise<void> {
    this.#stopWaiting();
    this.#settled();
    this.refuse();
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    for (const socket of this.#sockets) socket.destroySoon();
    await closed;
  }

  /** Ends all at once. */
  destroy(): void {
    this.#stopWaiting();
    this.#settled();
    this.refuse();
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  /** Where a connection goes now: a target, to those who wait, or nowhere. */
  #way(): string | 'wait' | 'closed' {
    const { target, wake, revoking, settling } = this.#route;
    if (this.#unconfirmed) return 'closed';
    if (target === null) return wake ? 'wait' : 'closed';
    return revoking || (settling && !this.#settled_late) ? 'wait' : target;
  }

  #take(socket: Socket): void {
    socket.on('error', () => socket.destroy());
    const { connections, connections_per_instance } = this.#limits;
    const full = this.#sockets.size >= connections_per_instance || this.#totals.connections >= connections;
    if (this.#unconfirmed || full || !this.#newcomers.take(socket)) {
      socket.destroy();
      return;
    }
    this.#sockets.add(socket);
    this.#totals.connections += 1;
    socket.once('close', () => {
      this.#sockets.delete(socket);
      this.#totals.connections -= 1;
    });
    if (this.#way() === 'closed') void this.#lookAgain(socket);
    else this.#send(socket);
  }

  /** Whoever was told `running` a moment ago may be here before the new route is. */
  async #lookAgain(socket: Socket): Promise<void> {
    await this.#events.look();
    if (!socket.destroyed) this.#send(socket);
  }

  #send(socket: Socket): void {
    const way = this.#way();
    if (way === 'closed') socket.destroy();
    else if (way === 'wait') this.#hold(socket);
    else this.#splice(socket, way);
  }

  #hold(socket: Socket): void {
    if (this.#held.size >= this.#limits.held_per_instance || this.#totals.held >= this.#limits.held) {
      const { target, revoking } = this.#route;
      if (target === null || revoking) socket.destroy();
      else this.#splice(socket, target);
      return;
    }
    const held = new HeldSocket(socket, this.#limits, () => this.#drop(held));
    this.#held.add(held);
    this.#totals.held += 1;
    if (this.waiting) this.#events.waits(this);
  }

  #letGo(held: HeldSocket): HeldSocket {
    if (this.#held.delete(held)) this.#totals.held -= 1;
    return held;
  }

  #drop(held: HeldSocket): void {
    this.#letGo(held).drop();
  }

  #splice(socket: Socket, target: string): void {
    this.#spliced.add(socket);
    let spoke = false;
    const delay_ms = this.#newcomers.isCrowd ? this.#limits.crowd_ms : 0;
    splice(socket, { target, dial: this.#dial, delay_ms }, this.#limits, {
      spoke: () => {
        spoke = true;
        this.#speaking += 1;
        if (this.#speaking === 1) this.#events.active();
      },
      sentEnough: () => this.#newcomers.sentEnough(socket),
      closed: () => {
        this.#spliced.delete(socket);
        if (!spoke) return;
        this.#speaking -= 1;
        this.#last_spoke_ms = performance.now();
      },
    });
  }

  #closeUnconfirmed(): void {
    this.#unconfirmed = true;
    const open = this.#sockets.size;
    this.#log.warn(
      { connections: open },
      'the guest has not confirmed that a revoked key is out: its port is closed until it does',
    );
    this.refuse();
    for (const socket of this.#sockets) socket.destroy();
  }

  #stopWaiting(): void {
    if (this.#revoking) clearTimeout(this.#revoking);
    this.#revoking = null;
  }

  #confirmed(): void {
    this.#stopWaiting();
    if (this.#unconfirmed) this.#log.info('the revocation is confirmed: the port is open again');
    this.#unconfirmed = false;
  }

  #waitNoMore(): void {
    this.#settled_late = true;
    this.#log.warn('the guest does not let in all keys yet: connections do not wait for that any longer');
    this.#moveOn();
  }

  #settled(): void {
    if (this.#settling) clearTimeout(this.#settling);
    this.#settling = null;
    this.#settled_late = false;
  }
}
