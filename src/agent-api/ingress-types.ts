/** What the control plane and the ingress say to each other: routes, wakes, activity. */
import type { InstanceId } from '../lib/ids.ts';

/** Begins a route's target that is reached through its host's agent. */
export const TUNNEL = 'tunnel:';

/** Where the ingress sends the connections of one instance's port. */
export interface IngressRoute {
  readonly instance_id: InstanceId;
  readonly port: number;
  /** `host:port` of the VM's sshd, or {@link TUNNEL} and the instance's id where it runs elsewhere; null while no VM runs. */
  readonly target: string | null;
  /** How often the guest was reset since its VM was started. Connections from before a reset lead nowhere. */
  readonly resets: number;
  /** A key was revoked, and the guest has not confirmed yet that its connections have ended. */
  readonly revoking: boolean;
  /** A key is allowed that the guest does not let in yet. */
  readonly settling: boolean;
  /** Without a target: hold the connection and ask for a start. */
  readonly wake: boolean;
}
export interface RoutesRequest {
  readonly seen: string | null;
  /** Ports that could not be opened, and why. */
  readonly blocked: readonly { readonly port: number; readonly problem: string }[];
}
export interface RoutesResponse {
  readonly etag: string;
  readonly routes: readonly IngressRoute[];
}

/** Asks that the VM be started for a connection that waits at its port. */
export interface WakeRequest {
  readonly instance_id: InstanceId;
}
export type WakeResponse =
  /** It is coming up, or will be asked for again once what it does now has ended. */
  { readonly outcome: 'coming' } | { readonly outcome: 'refused'; readonly why: string };

/** Which ports had connections; said every few seconds, also when there were none. */
export interface ActivityReport {
  /** For how long this ingress has watched without a gap. */
  readonly watched_ms: number;
  /** Those with any since the last report that was heard, and how long ago the last was. */
  readonly active: readonly { readonly instance_id: InstanceId; readonly ago_ms: number }[];
}
