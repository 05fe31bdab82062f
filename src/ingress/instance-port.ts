/**
 * The SSH port of one instance, and its connections. A connection is
 *
 *   held ──target──▶ spliced ──▶ closed
 *     └──no target, timeout──▶ closed
 *
 * It is held while its VM wakes. It is also held while a revocation is unconfirmed, because the guest may still accept
 * the revoked key, and until the guest accepts an added key, for `settling_ms` at most. If a revocation is not
 * confirmed in time, all connections of the instance end, and the port accepts none until the confirmation comes.
 *
 * A guest that is reset does not close its connections, and QEMU keeps them, so the ingress closes them.
 */
import { createServer, type Server, type Socket } from 'node:net';
import type { Duplex } from 'node:stream';
import type { IngressRoute } from '../protocol/ingress-types.ts';
import { sourceOf } from '../shared/connection-budget.ts';
import { contain, endAfterFault } from '../shared/contain.ts';
import type { Log } from '../shared/log.ts';
import { pause } from '../shared/retry.ts';
import { passParts } from '../shared/streams.ts';
import { type Dial, dialPort, HeldSocket } from './dial.ts';
import type { IngressLimits, Totals } from './limits.ts';

/**
 * The connections of one port that may not have logged in yet. The guest's sshd accepts a bounded number of them, so idle
 * ones would block logins. Nothing reads the session: a connection is `early` until its client has sent as much as any
 * login needs, and `young` for as long as sshd waits for a login.
 *
 * Above the bound for early connections, the oldest of the source with the most is evicted, so that no source displaces
 * others. Young connections are bounded per source, which limits a client that sends data but never logs in.
 */
class Newcomers {
  readonly #limits: IngressLimits;
  readonly #totals: Totals;
  /** By source, oldest first, with the time of arrival. */
  readonly #young = new Map<string, Map<Socket, number>>();
  readonly #early = new Map<string, Set<Socket>>();

  constructor(limits: IngressLimits, totals: Totals) {
    this.#limits = limits;
    this.#totals = totals;
  }

  /** False when its source has too many young connections. */
  take(socket: Socket): boolean {
    const source = sourceOf(socket.remoteAddress);
    const young = this.#youngOf(source);
    if (young.size >= this.#limits.young_per_source) {
      const oldest = this.#early.get(source)?.values().next().value;
      if (oldest === undefined) return false;
      this.#evict(oldest);
    }
    young.set(socket, performance.now());
    this.#young.set(source, young);
    this.#early.set(source, (this.#early.get(source) ?? new Set()).add(socket));
    this.#totals.early.add(socket);
    socket.once('close', () => this.#remove(source, socket));
    this.#evictBeyondLimits();
    return true;
  }

  /** Many connections are early, as in a burst. */
  get isCrowd(): boolean {
    let count = 0;
    for (const early of this.#early.values()) count += early.size;
    return count > this.#limits.crowd;
  }

  /** The client has sent as much as a login needs. */
  sentLogin(socket: Socket): void {
    for (const [source, early] of this.#early) if (early.has(socket)) this.#removeEarly(source, socket);
  }

  /** The connections of which sshd may still expect a login. */
  #youngOf(source: string): Map<Socket, number> {
    const young = this.#young.get(source) ?? new Map<Socket, number>();
    const since_ms = performance.now() - this.#limits.young_ms;
    for (const [socket, came_ms] of young) {
      if (came_ms > since_ms) break;
      young.delete(socket);
    }
    return young;
  }

  #evictBeyondLimits(): void {
    let count = 0;
    let most: Set<Socket> | undefined;
    for (const early of this.#early.values()) {
      count += early.size;
      if (early.size > (most?.size ?? 0)) most = early;
    }
    if (count > this.#limits.early_per_instance) this.#evict(most?.values().next().value);
    if (this.#totals.early.size > this.#limits.early) this.#evict(this.#totals.early.values().next().value);
  }

  #evict(socket: Socket | undefined): void {
    if (!socket) return;
    this.#totals.early.delete(socket);
    for (const source of this.#early.keys()) this.#removeEarly(source, socket);
    for (const young of this.#young.values()) young.delete(socket);
    socket.destroy();
  }

  #removeEarly(source: string, socket: Socket): void {
    const early = this.#early.get(source);
    if (!early?.delete(socket)) return;
    this.#totals.early.delete(socket);
    if (early.size === 0) this.#early.delete(source);
  }

  #remove(source: string, socket: Socket): void {
    this.#removeEarly(source, socket);
    const young = this.#young.get(source);
    young?.delete(socket);
    if (young?.size === 0) this.#young.delete(source);
  }
}

const KEEP_ALIVE_MS = 60_000;

export interface SpliceEvents {
  /** The client has sent its first bytes. */
  readonly firstData: () => void;
  /** The client has sent `login_bytes`. */
  readonly sentLogin: () => void;
  readonly closed: () => void;
}

/** Dials `target` and joins it with `inbound`. The end of either ends the other. */
export function splice(
  inbound: Socket,
  way: { readonly target: string; readonly dial: Dial; readonly delay_ms: number },
  limits: Pick<IngressLimits, 'dial_ms' | 'silent_ms' | 'login_bytes'>,
  events: SpliceEvents,
): void {
  const silent = setTimeout(() => inbound.destroy(), limits.silent_ms);
  inbound.once('close', () => {
    clearTimeout(silent);
    events.closed();
  });
  const dialled = dialLater(inbound, way, limits.dial_ms).then(
    (outbound) => {
      outbound.on('error', () => outbound.destroy());
      if (inbound.destroyed) return void outbound.destroy();
      inbound.once('data', () => {
        clearTimeout(silent);
        events.firstData();
      });
      const count = () => {
        if (inbound.bytesRead < limits.login_bytes) return;
        inbound.off('data', count);
        events.sentLogin();
      };
      inbound.on('data', count);
      join(inbound, outbound);
    },
    () => void inbound.destroy(),
  );
  dialled.catch(endAfterFault(inbound));
}

/** Does not dial if the client disconnects during the delay. */
async function dialLater(
  inbound: Socket,
  { target, dial, delay_ms }: { readonly target: string; readonly dial: Dial; readonly delay_ms: number },
  dial_ms: number,
): Promise<Duplex> {
  if (delay_ms > 0) await pause(delay_ms);
  if (inbound.destroyed) throw new Error('the client disconnected');
  return dial(target, dial_ms);
}

function join(inbound: Socket, outbound: Duplex): void {
  inbound.setKeepAlive(true, KEEP_ALIVE_MS);
  outbound.once('close', () => inbound.destroySoon());
  inbound.once('close', () => outbound.destroy());
  passParts(inbound, outbound);
  passParts(outbound, inbound);
}

export interface PortEvents {
  /** A connection waits for a VM that does not run. */
  readonly waiting: (port: InstancePort) => void;
  /** The number of connections rose from zero. */
  readonly active: () => void;
  /** Resolves when the routes have been read after this call, or could not be. */
  readonly refresh: () => Promise<void>;
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
  /** The time limit for added keys has passed. */
  #settling_expired = false;
  /** Connections whose client has sent data, and when the last of them ended. */
  #in_use = 0;
  #last_used_ms: number | null = null;

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
    // Half-open: one side may still send after the other has ended.
    this.#server = contain(createServer({ noDelay: true, pauseOnConnect: true, allowHalfOpen: true }));
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

  /** When a connection was last in use (`now_ms` if one is), on the clock of `performance.now()`; null: never. */
  lastUsed(now_ms: number): number | null {
    return this.#in_use > 0 ? now_ms : this.#last_used_ms;
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

  /** Open connections stay, unless the guest was reset. Held ones are spliced, closed or held on by the new route. */
  update(route: IngressRoute): void {
    if (route.resets !== this.#route.resets) for (const socket of this.#spliced) socket.destroy();
    this.#route = route;
    if (route.revoking)
      this.#revoking ??= setTimeout(() => this.#closeUnconfirmed(), this.#limits.revoking_ms);
    else this.#confirmed();
    if (route.settling) this.#settling ??= setTimeout(() => this.#expireSettling(), this.#limits.settling_ms);
    else this.#settled();
    this.#reroute();
  }

  #reroute(): void {
    for (const held of [...this.#held]) {
      const decision = this.#decision();
      if (decision === 'closed') this.#drop(held);
      else if (decision !== 'wait') this.#splice(this.#remove(held).release(), decision);
    }
    if (this.waiting) this.#events.waiting(this);
  }

  /** Closes the held connections: their VM will not start. */
  refuse(): void {
    for (const held of [...this.#held]) this.#drop(held);
  }

  /** Accepts no more, and ends every connection once its buffered data is sent. */
  async close(): Promise<void> {
    this.#clearRevoking();
    this.#settled();
    this.refuse();
    const closed = new Promise<void>((resolve) => this.#server.close(() => resolve()));
    for (const socket of this.#sockets) socket.destroySoon();
    await closed;
  }

  /** Ends every connection at once. */
  destroy(): void {
    this.#clearRevoking();
    this.#settled();
    this.refuse();
    this.#server.close();
    for (const socket of this.#sockets) socket.destroy();
  }

  /** What happens to a connection now: a target to splice it to, `wait`, or `closed`. */
  #decision(): string | 'wait' | 'closed' {
    const { target, wake, revoking, settling } = this.#route;
    if (this.#unconfirmed) return 'closed';
    if (target === null) return wake ? 'wait' : 'closed';
    return revoking || (settling && !this.#settling_expired) ? 'wait' : target;
  }

  #take(socket: Socket): void {
    socket.on('error', () => socket.destroy());
    const { connections, connections_per_instance } = this.#limits;
    const full = this.#isFull(
      this.#sockets.size,
      connections_per_instance,
      this.#totals.connections >= connections,
    );
    if (this.#unconfirmed || full || !this.#totals.budget.admit(socket) || !this.#newcomers.take(socket)) {
      socket.destroy();
      return;
    }
    this.#sockets.add(socket);
    this.#totals.connections += 1;
    socket.once('close', () => {
      this.#sockets.delete(socket);
      this.#totals.connections -= 1;
    });
    if (this.#decision() === 'closed') void this.#refreshAndSend(socket).catch(endAfterFault(socket));
    else this.#send(socket);
  }

  #isFull(count: number, most: number, total_is_reached: boolean): boolean {
    return count >= most || (total_is_reached && count >= this.#limits.assured_per_instance);
  }

  /** The API may have reported `running` before the new route arrived here. */
  async #refreshAndSend(socket: Socket): Promise<void> {
    await this.#events.refresh();
    if (!socket.destroyed) this.#send(socket);
  }

  #send(socket: Socket): void {
    const decision = this.#decision();
    if (decision === 'closed') socket.destroy();
    else if (decision === 'wait') this.#hold(socket);
    else this.#splice(socket, decision);
  }

  #hold(socket: Socket): void {
    const { held: held_in_total, held_per_instance } = this.#limits;
    if (this.#isFull(this.#held.size, held_per_instance, this.#totals.held >= held_in_total)) {
      const { target, revoking } = this.#route;
      if (target === null || revoking) socket.destroy();
      else this.#splice(socket, target);
      return;
    }
    const held = new HeldSocket(socket, this.#limits, () => this.#drop(held));
    this.#held.add(held);
    this.#totals.held += 1;
    if (this.waiting) this.#events.waiting(this);
  }

  #remove(held: HeldSocket): HeldSocket {
    if (this.#held.delete(held)) this.#totals.held -= 1;
    return held;
  }

  #drop(held: HeldSocket): void {
    this.#remove(held).drop();
  }

  #splice(socket: Socket, target: string): void {
    this.#spliced.add(socket);
    let used = false;
    const delay_ms = this.#newcomers.isCrowd ? this.#limits.crowd_ms : 0;
    splice(socket, { target, dial: this.#dial, delay_ms }, this.#limits, {
      firstData: () => {
        used = true;
        this.#in_use += 1;
        if (this.#in_use === 1) this.#events.active();
      },
      sentLogin: () => {
        this.#newcomers.sentLogin(socket);
        this.#totals.budget.use(socket);
      },
      closed: () => {
        this.#spliced.delete(socket);
        if (!used) return;
        this.#in_use -= 1;
        this.#last_used_ms = performance.now();
      },
    });
  }

  #closeUnconfirmed(): void {
    this.#unconfirmed = true;
    const open = this.#sockets.size;
    this.#log.warn(
      { connections: open },
      'the guest has not confirmed the revocation of a key: the port is closed until it does',
    );
    this.refuse();
    for (const socket of this.#sockets) socket.destroy();
  }

  #clearRevoking(): void {
    if (this.#revoking) clearTimeout(this.#revoking);
    this.#revoking = null;
  }

  #confirmed(): void {
    this.#clearRevoking();
    if (this.#unconfirmed) this.#log.info('the revocation is confirmed: the port is open again');
    this.#unconfirmed = false;
  }

  #expireSettling(): void {
    this.#settling_expired = true;
    this.#log.warn('the guest does not accept all keys yet: connections no longer wait for that');
    this.#reroute();
  }

  #settled(): void {
    if (this.#settling) clearTimeout(this.#settling);
    this.#settling = null;
    this.#settling_expired = false;
  }
}
