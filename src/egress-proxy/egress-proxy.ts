/**
 * The egress proxy of a host: resolves names and connects to servers for VMs with restricted egress, and puts secrets
 * into requests to port 443. nftables rules redirect these look-ups and connections here, and keep the original
 * destination. They decide all other traffic of a guest themselves (host/egress/policy-rules.ts).
 *
 *   look-up  ──► dns-server: is the name allowed? ──► name-resolver ──► the host's resolvers
 *   port 443 ──► tls-handler: are the TLS server name and the address allowed? ──► the server, by secret-handler if it
 *                                                                                 has a secret for that name
 *   port 80  ──► http-handler: are the host of each request and the address allowed? ──► the server
 *   other    ──► address-handler: was the address resolved for an allowed name? ──► the server
 *
 * Invariants: a VM that the agent has not listed gets nothing. A restricted VM reaches only addresses that its policy
 * allows, or that it got for an allowed name. A new policy is confirmed only once open connections obey it.
 */
import type { Socket } from 'node:net';
import { Denials } from '../protocol/denials.ts';
import type {
  EgressProxyState,
  FromEgressProxy,
  GuestPolicy,
  ToEgressProxy,
} from '../protocol/egress-proxy-messages.ts';
import { ADMIT_MS } from '../protocol/egress-proxy-messages.ts';
import { endAfterFault } from '../shared/contain.ts';
import { closedBy } from '../shared/networks.ts';
import { type Destination, passByAddress } from './address-handler.ts';
import { HttpHandler } from './http-handler.ts';
import { NameResolver, type Upstream } from './name-resolver.ts';
import { ProxiedGuest, type ProxiedGuestOptions } from './proxied-guest.ts';
import { SecretHandler } from './secret-handler.ts';
import { HTTPS_PORT } from './secret-request.ts';
import { ServerFailureReports, TrustedRoots } from './secret-server.ts';
import { TlsContexts } from './tls-contexts.ts';
import { passTls } from './tls-handler.ts';

const HTTP_PORT = 80;

export interface EgressProxyOptions {
  /** A file with the certificates of the authorities that the host trusts. */
  readonly roots_file: string;
  readonly tell: (message: FromEgressProxy) => void;
}

export class EgressProxy {
  readonly #resolver: NameResolver;
  readonly #denials: Denials;
  readonly #http = new HttpHandler();
  readonly #certificates: TlsContexts;
  readonly #secrets: SecretHandler;
  readonly #guests = new Map<string, ProxiedGuest>();
  readonly #tell: EgressProxyOptions['tell'];
  /** Changes that the agent has not answered, by number. */
  readonly #admissions = new Map<number, (known: boolean) => void>();
  #changes = 0;

  constructor({ roots_file, tell }: EgressProxyOptions) {
    this.#tell = tell;
    this.#resolver = new NameResolver({ servers: [], isClosed: closedBy([]) });
    this.#denials = new Denials((denials) => tell({ type: 'denied', denials }));
    this.#certificates = new TlsContexts((authority, name, public_key) =>
      tell({ type: 'certificate', authority, name, public_key }),
    );
    const failures = new ServerFailureReports(tell);
    this.#secrets = new SecretHandler({
      contexts: this.#certificates,
      roots: new TrustedRoots(roots_file),
      reportFailure: (guest, name, reason) => failures.add(guest, name, reason),
    });
  }

  takeCertificate({ authority, name, certificate }: Extract<ToEgressProxy, { type: 'certificate' }>): void {
    this.#certificates.take(authority, name, certificate);
  }

  takeAdmitted({ change, known }: Extract<ToEgressProxy, { type: 'admitted' }>): void {
    this.#admissions.get(change)?.(known);
  }

  /** Has the kernel let a guest's first packets pass. @throws when it does not */
  async #admit(guest: string, addresses: readonly string[]): Promise<void> {
    if (addresses.length === 0) return;
    const change = ++this.#changes;
    const { promise, resolve } = Promise.withResolvers<boolean>();
    this.#admissions.set(change, resolve);
    const late = setTimeout(() => resolve(false), ADMIT_MS);
    this.#tell({ type: 'admit', change, guest, addresses });
    const known = await promise;
    clearTimeout(late);
    this.#admissions.delete(change);
    if (!known) throw new Error('the agent has not admitted the addresses');
  }

  apply(state: EgressProxyState): void {
    this.#resolver.replaceUpstream(upstreamOf(state));
    const wanted = new Set(state.guests.map(({ address }) => address));
    for (const [address, guest] of this.#guests) {
      if (wanted.has(address)) continue;
      this.#guests.delete(address);
      guest.cutAll();
    }
    for (const each of state.guests) {
      const guest = this.#guests.get(each.address);
      if (guest) guest.change(each);
      else this.#guests.set(each.address, new ProxiedGuest(each, this.#optionsOf(each)));
    }
  }

  #optionsOf({ address }: GuestPolicy): ProxiedGuestOptions {
    return {
      resolver: this.#resolver,
      denials: this.#denials,
      admit: (addresses) => this.#admit(address, addresses),
    };
  }

  readonly findGuest = (address: string | undefined): ProxiedGuest | undefined =>
    this.#guests.get(plain(address));

  /** A connection whose local end has the original destination. */
  readonly accept = (socket: Socket): void => {
    socket.on('error', () => socket.destroy());
    const guest = this.findGuest(socket.remoteAddress);
    const to = { address: plain(socket.localAddress), port: socket.localPort ?? 0 };
    if (!guest) return void socket.resetAndDestroy();
    if (to.port === HTTP_PORT) this.#http.pass(socket, guest, to);
    else void this.#pass(socket, guest, to).catch(endAfterFault(socket));
  };

  #pass(socket: Socket, guest: ProxiedGuest, to: Destination): Promise<void> {
    if (to.port === HTTPS_PORT) return passTls(socket, guest, to, this.#secrets);
    return passByAddress(socket, guest, to);
  }
}

function upstreamOf({ resolvers, host_networks }: EgressProxyState): Upstream {
  return { servers: resolvers, isClosed: closedBy(host_networks) };
}

/** An IPv4 address that a socket for both families shows as `::ffff:…`. */
function plain(address: string | undefined): string {
  return (address ?? '').replace(/^::ffff:/, '');
}
