/**
 * Defines the messages between a host's agent and its egress proxy, which use Node's channel between parent and child.
 * The agent sends the egress policies and secrets of VMs. The proxy sends denied connections, resolved addresses and
 * requests for certificates.
 */
import type { EgressPolicy } from '../shared/egress-policy.ts';

/** A certificate for a guest is valid from and until then, because its clock may differ. */
export const LEAF_BACKDATED_MS = 86_400_000;
export const LEAF_AHEAD_MS = 2 * 86_400_000;

/** How long a guest waits until the kernel lets it reach an address that a name has resolved to. */
export const ADMIT_MS = 2_000;

/** A secret as the egress proxy uses it. */
export interface GuestSecret {
  readonly placeholder: string;
  /** Exact names, or `*.` and a domain: every name below it. In lower case. */
  readonly hosts: readonly string[];
  readonly value: string;
}

export function coversHost(hosts: readonly string[], name: string): boolean {
  return hosts.some((host) => (host.startsWith('*.') ? name.endsWith(host.slice(1)) : name === host));
}

export interface GuestPolicy {
  /** The VM's own address, as the proxy sees it. The packet rules make it unforgeable. */
  readonly address: string;
  readonly policy: EgressPolicy;
  readonly secrets: readonly GuestSecret[];
  /** The fingerprint of its authority; null: it has none, because it has no secrets. */
  readonly authority: string | null;
}

/** The whole state; it replaces the last one. */
export interface EgressProxyState {
  readonly sequence: number;
  /** As `dns.setServers` takes them. */
  readonly resolvers: readonly string[];
  /** Networks and addresses of this host, closed beside those that always are. */
  readonly host_networks: readonly string[];
  readonly guests: readonly GuestPolicy[];
}

export type ToEgressProxy =
  | ({ readonly type: 'state' } & EgressProxyState)
  /** Of the change with this number: whether the kernel knows. */
  | { readonly type: 'admitted'; readonly change: number; readonly known: boolean }
  /** null: it cannot be made. */
  | {
      readonly type: 'certificate';
      readonly authority: string;
      readonly name: string;
      readonly certificate: string | null;
    };

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

export type FromEgressProxy =
  | { readonly type: 'applied'; readonly sequence: number }
  | { readonly type: 'denied'; readonly denials: readonly CountedDenial[] }
  /** The resolver gives these addresses to a VM, so that its first packets may go there. */
  | {
      readonly type: 'admit';
      readonly change: number;
      readonly guest: string;
      readonly addresses: readonly string[];
    }
  /** The proxy asks for one. `public_key`: SubjectPublicKeyInfo, base64. */
  | {
      readonly type: 'certificate';
      readonly authority: string;
      readonly name: string;
      readonly public_key: string;
    }
  /** A server that a secret names could not be trusted or reached, so that it got nothing. */
  | {
      readonly type: 'server_failed';
      readonly guest: string;
      readonly name: string;
      readonly reason: string;
    };
