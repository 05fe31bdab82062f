/**
 * Holds every instance's stable SSH port and splices its connections to the VM's sshd, bytes as they are: no
 * code here reads a session. It keeps no state: the routes come from the control plane by long poll, and the
 * last ones are used while it is away. Connections outlive a change of routes; a VM's end closes them.
 */
import { connect, createServer, type Server, type Socket } from 'node:net';
import type { ControlPlaneClient } from '../agent-api/client.ts';
import type { IngressRoute } from '../agent-api/types.ts';
import { backoffMs, pause } from '../lib/backoff.ts';
import { errnoOf, messageOf } from '../lib/errors.ts';
import type { Log } from '../lib/log.ts';

/** Connections of one instance at once; more are closed at once. */
const MAX_CONNECTIONS_PER_INSTANCE = 500;
const DIAL_TIMEOUT_MS = 5_000;

interface Listener {
  readonly server: Server;
  readonly sockets: Set<Socket>;
  target: string | null;
}

export class Ingress {
  readonly #listeners = new Map<number, Listener>();
  readonly #blocked = new Map<number, string>();
  readonly #host: string;
  readonly #client: ControlPlaneClient;
  readonly #log: Log;

  constructor(options: { host: string; client: ControlPlaneClient; log: Log }) {
    this.#host = options.host;
    this.#client = options.client;
    this.#log = options.log;
  }

  /** Follows the routes until `signal` aborts, then closes every port. */
  async run(signal: AbortSignal): Promise<void> {
    let seen: string | null = null;
    for (let failures = 0; !signal.aborted; ) {
      try {
        const blocked = [...this.#blocked].map(([port, problem]) => ({ port, problem }));
        const answer = await this.#client.routes({ seen: blocked.length > 0 ? null : seen, blocked }, signal);
        failures = 0;
        await this.apply(answer.routes);
        seen = answer.etag;
        if (this.#blocked.size > 0) await pause(2_000, signal);
      } catch (error) {
        if (signal.aborted) break;
        if (failures === 6) {
          this.#log.warn({ reason: messageOf(error) }, 'the control plane is away; the last routes stay');
        }
        await pause(backoffMs(failures++, 100, 2_000), signal);
      }
    }
    this.close();
  }

  /** Opens, points and closes ports so that they are as `routes` says. */
  async apply(routes: readonly IngressRoute[]): Promise<void> {
    const wanted = new Set(routes.map((route) => route.port));
    for (const [port, listener] of this.#listeners) {
      if (!wanted.has(port)) this.#shut(port, listener);
    }
    for (const port of this.#blocked.keys()) if (!wanted.has(port)) this.#blocked.delete(port);
    for (const route of routes) {
      const listener = this.#listeners.get(route.port);
      if (listener) listener.target = route.target;
      else await this.#open(route);
    }
  }

  close(): void {
    for (const [port, listener] of this.#listeners) this.#shut(port, listener);
  }

  async #open(route: IngressRoute): Promise<void> {
    const listener: Listener = {
      // Half-open: what one side still sends after the other has ended its own sending gets through.
      server: createServer({ noDelay: true, pauseOnConnect: true, allowHalfOpen: true }),
      sockets: new Set(),
      target: route.target,
    };
    listener.server.on('connection', (socket) => this.#splice(listener, socket));
    const problem = await new Promise<string | null>((resolve) => {
      listener.server.once('error', (error) => {
        resolve(errnoOf(error) === 'EADDRINUSE' ? 'another program has the port' : messageOf(error));
      });
      listener.server.listen({ host: this.#host, port: route.port, exclusive: true }, () => resolve(null));
    });
    if (problem === null) {
      listener.server.on('error', (error) => this.#log.warn({ err: error, port: route.port }, 'listener'));
      this.#listeners.set(route.port, listener);
      this.#blocked.delete(route.port);
      return;
    }
    if (!this.#blocked.has(route.port)) {
      this.#log.error(
        { port: route.port, instance_id: route.instance_id },
        `SSH port cannot be opened: ${problem}`,
      );
    }
    this.#blocked.set(route.port, problem);
  }

  #shut(port: number, listener: Listener): void {
    this.#listeners.delete(port);
    listener.server.close();
    for (const socket of listener.sockets) socket.destroy();
  }

  #splice(listener: Listener, inbound: Socket): void {
    inbound.on('error', () => inbound.destroy());
    const { target } = listener;
    if (target === null || listener.sockets.size >= MAX_CONNECTIONS_PER_INSTANCE) {
      inbound.destroy();
      return;
    }
    const at = target.lastIndexOf(':');
    const outbound = connect({
      host: target.slice(0, at),
      port: Number(target.slice(at + 1)),
      noDelay: true,
      allowHalfOpen: true,
    });
    const dialled = setTimeout(() => outbound.destroy(), DIAL_TIMEOUT_MS);
    listener.sockets.add(inbound);
    outbound.once('connect', () => {
      clearTimeout(dialled);
      inbound.setKeepAlive(true, 60_000);
      inbound.pipe(outbound).pipe(inbound);
    });
    outbound.on('error', () => outbound.destroy());
    outbound.once('close', () => {
      clearTimeout(dialled);
      inbound.destroySoon();
    });
    inbound.once('close', () => {
      listener.sockets.delete(inbound);
      outbound.destroy();
    });
  }
}
