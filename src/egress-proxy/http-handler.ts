/**
 * Handles guests' HTTP connections to port 80. The VM's policy must permit the host of each request, and the
 * connection's destination must be an address that the resolver gave this VM for that host. Any other request is
 * refused, and reported as denied. Requests of one guest connection share one connection to the server.
 */
import { Agent, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { Socket } from 'node:net';
import { sentName } from '../shared/egress-policy.ts';
import type { CheckedRequest } from '../shared/http-request.ts';
import type { Destination } from './address-handler.ts';
import {
  keptFields,
  originForm,
  type Passing,
  passRequest,
  passUpgrade,
  portOf,
  readRequest,
  refuseGuest,
  relayServer,
  sendText,
} from './http-relay.ts';
import type { ProxiedGuest } from './proxied-guest.ts';

const IDLE_MS = 60_000;
const HTTP_PORT = 80;

interface Connection {
  readonly guest: ProxiedGuest;
  readonly to: Destination;
  readonly agent: Agent;
  /** Hosts of requests that were let through. */
  readonly names: Set<string>;
}

export class HttpHandler {
  readonly #connections = new WeakMap<Socket, Connection>();
  readonly #server: Server;

  constructor() {
    this.#server = relayServer({
      request: (incoming, response) => this.#serve(incoming, response),
      upgrade: (incoming, socket, head) => this.#upgrade(incoming, socket, head),
      connect: (incoming, socket) => {
        this.#deny(socket, nameOf(readRequest(incoming)));
        refuseGuest(socket, 403, 'CONNECT is not possible.');
      },
      unreadable: (socket) => {
        this.#deny(socket, null);
        refuseGuest(socket, 400, 'This is no request by HTTP.');
      },
    });
  }

  pass(socket: Socket, guest: ProxiedGuest, to: Destination): void {
    const names = new Set<string>();
    const release = guest.hold({
      isPermitted: () => [...names].every((name) => guest.permitsName(name, to.port)),
      cut: () => socket.resetAndDestroy(),
    });
    if (!release) return void socket.resetAndDestroy();
    // One connection of the guest has one to the server, as if it were not relayed.
    const agent = new Agent({ keepAlive: true, maxSockets: 1, keepAliveMsecs: IDLE_MS });
    socket.once('close', () => {
      release();
      agent.destroy();
    });
    this.#connections.set(socket, { guest, to, agent, names });
    this.#server.emit('connection', socket);
  }

  async #serve(incoming: IncomingMessage, response: ServerResponse): Promise<void> {
    const passing = await this.#permitted(incoming.socket, incoming);
    if (passing) return void passRequest(incoming, response, passing);
    sendText(response, 403, refusal(incoming));
    incoming.resume();
  }

  async #upgrade(incoming: IncomingMessage, socket: Socket, head: Buffer): Promise<void> {
    const passing = await this.#permitted(socket, incoming);
    if (passing) passUpgrade(incoming, socket, head, passing);
    else refuseGuest(socket, 403, refusal(incoming));
  }

  /** null: it is not permitted, and the denial is recorded. */
  async #permitted(socket: Socket, incoming: IncomingMessage): Promise<Passing | null> {
    const connection = this.#connections.get(socket);
    const checked = readRequest(incoming);
    const name = nameOf(checked);
    const target = originForm(incoming.url ?? '', 'http');
    if (connection && checked && name !== null && target !== null) {
      const { guest, to, agent, names } = connection;
      const permitted = () => portOf(checked, HTTP_PORT) === to.port && guest.permitsName(name, to.port);
      // The policy may change meanwhile.
      if (permitted() && (await guest.nameHas(name, to.address)) && permitted()) {
        names.add(name);
        return { agent, to, target, fields: keptFields(incoming.rawHeaders), checked };
      }
    }
    this.#deny(socket, name);
    return null;
  }

  #deny(socket: Socket, name: string | null): void {
    const connection = this.#connections.get(socket);
    connection?.guest.deny({ name, ...connection.to });
  }
}

/** The one host that a request names; null: none, several, or no host name. */
function nameOf(checked: CheckedRequest | null): string | null {
  return checked && sentName(checked.hostname);
}

function refusal(incoming: IncomingMessage): string {
  const name = nameOf(readRequest(incoming));
  return `The egress policy of this instance does not allow ${name ?? 'this host'}.${name === null ? '' : ` To allow it: berth egress NAME allow ${name}`}`;
}
