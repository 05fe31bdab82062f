/** What the agent and the gate's process say to each other, over Node's channel between parent and child. */
import type { EgressPolicy } from '../../lib/egress-policy.ts';

export interface GuestPolicy {
  /** The VM's own address, as the gate sees it. The packet rules make it unforgeable. */
  readonly address: string;
  readonly policy: EgressPolicy;
}

/** The whole state; it replaces the last one. */
export interface GateState {
  readonly sequence: number;
  /** As `dns.setServers` takes them. */
  readonly resolvers: readonly string[];
  /** Networks and addresses of this host, closed beside those that always are. */
  readonly host_networks: readonly string[];
  readonly guests: readonly GuestPolicy[];
}

/** A destination that a VM was denied. Without an address: a look-up. Without a port: another protocol than TCP and UDP. */
export interface Denial {
  readonly guest: string;
  readonly name: string | null;
  readonly address: string | null;
  readonly port: number | null;
}

export interface CountedDenial extends Denial {
  readonly at_ms: number;
  readonly count: number;
}

export type FromGate =
  | { readonly type: 'applied'; readonly sequence: number }
  | { readonly type: 'denied'; readonly denials: readonly CountedDenial[] };
