/**
 * The gate: resolver and relay of the VMs whose egress is restricted. The packet rules lead their look-ups and their TCP
 * connections here, with the original destination; everything else of theirs is decided by the rules alone.
 *
 *   look-up ──► dns-server ──► guest: is the name permitted? ──► name-resolver ──► the host's resolvers
 *   port 443 ──► tls-way ──┐
 *   port 80 ──► http-way ──┼──► guest: is the name permitted, and did it have this address? ──► the destination
 *   other ──► address-way ─┘
 *
 * Invariants: a VM that is not in the state gets nothing; a connection is made only to an address that the resolver gave for a name
 * that the policy permits; a new state takes effect for open connections before it is confirmed.
 */
import type { Socket } from 'node:net';
import { closedBy } from '../../lib/closed-networks.ts';
import { passByAddress } from './address-way.ts';
import { Denials } from './denials.ts';
import type { CountedDenial, GateState } from './gate-messages.ts';
import { Guest } from './guest.ts';
import { HttpWay } from './http-way.ts';
import { NameResolver, type Upstream } from './name-resolver.ts';
import { passTls } from './tls-way.ts';

const HTTP_PORT = 80;
const TLS_PORT = 443;

export class Gate {
  readonly #resolver: NameResolver;
  readonly #denials: Denials;
  readonly #http = new HttpWay();
  readonly #guests = new Map<string, Guest>();

  constructor(pass: (denials: readonly CountedDenial[]) => void) {
    this.#resolver = new NameResolver({ servers: [], isClosed: closedBy([]) });
    this.#denials = new Denials(pass);
  }

  apply(state: GateState): void {
    this.#resolver.replaceUpstream(upstreamOf(state));
    const wanted = new Set(state.guests.map(({ address }) => address));
    for (const [address, guest] of this.#guests) {
      if (wanted.has(address)) continue;
      this.#guests.delete(address);
      guest.cutAll();
    }
    for (const { address, policy } of state.guests) {
      const guest = this.#guests.get(address);
      if (guest) guest.change(policy);
      else
        this.#guests.set(
          address,
          new Guest(address, policy, { resolver: this.#resolver, denials: this.#denials }),
        );
    }
  }

  readonly findGuest = (address: string | undefined): Guest | undefined => this.#guests.get(plain(address));

  /** A connection whose local end has the original destination. */
  readonly accept = (socket: Socket): void => {
    socket.on('error', () => socket.destroy());
    const guest = this.findGuest(socket.remoteAddress);
    const to = { address: plain(socket.localAddress), port: socket.localPort ?? 0 };
    if (!guest) return void socket.resetAndDestroy();
    if (to.port === HTTP_PORT) this.#http.pass(socket, guest, to);
    else
      void (to.port === TLS_PORT ? passTls : passByAddress)(socket, guest, to).catch(() => socket.destroy());
  };
}

function upstreamOf({ resolvers, host_networks }: GateState): Upstream {
  return { servers: resolvers, isClosed: closedBy(host_networks) };
}

/** An IPv4 address that a socket for both families shows as `::ffff:…`. */
function plain(address: string | undefined): string {
  return (address ?? '').replace(/^::ffff:/, '');
}
