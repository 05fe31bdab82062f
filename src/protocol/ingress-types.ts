/** Messages between control plane and ingress: routes, wakes, activity. */
import { Type } from 'typebox';
import { CONTROL_PLANES_MAX, ControlPlanePlace } from './peer-types.ts';
import {
  Count,
  closed,
  Etag,
  GuestPortAddress,
  InstanceId,
  listOf,
  Milliseconds,
  matching,
  named,
  nullable,
  type Of,
  Port,
  Text,
} from './schemas.ts';

/** Prefix of a route's target that is reached through its host's agent. */
export const TUNNEL = 'tunnel:';
const ROUTES_MAX = 1_000_000;
const HostName = matching('^[0-9A-Za-z.:-]+$', 253);

/** Where the ingress sends the connections of one instance's SSH address. */
export const IngressRoute = named('IngressRoute', {
  instance_id: InstanceId,
  /** The name of its SSH address. */
  host: HostName,
  port: Port,
  /** `host:port` of the VM's sshd, or {@link TUNNEL} and the instance's id where it runs elsewhere; null while no VM runs. */
  target: nullable(matching('^[\\x21-\\x7e]+$', 100)),
  /** How often the guest was reset since the VM's start. A reset breaks earlier connections without notice. */
  resets: Count,
  /** A key was revoked, and the guest has not confirmed yet that its connections have ended. */
  revoking: Type.Boolean(),
  /** A key was added that the guest does not accept yet. */
  settling: Type.Boolean(),
  /** Without a target: hold the connection and request a start. */
  wake: Type.Boolean(),
});
export type IngressRoute = Of<typeof IngressRoute>;

/** Above that many, an answer has all routes. */
export const CHANGED_MAX = 10_000;
/** What every poll for routes says. */
export const ROUTES_ASKED = {
  /** The newest answer; null: none yet. */
  seen: nullable(Etag),
  /** The caller understands answers with `changed`. One of the previous version does not. */
  changes_only: Type.Optional(Type.Boolean()),
  /** Not held: the answer has every change that was committed before the call. */
  at_once: Type.Optional(Type.Boolean()),
};
/** What every answer says, beside `routes`. */
export const ROUTES_ANSWERED = {
  etag: Etag,
  /** `routes` has all routes of these instances, and those of all others are as in `seen`. Absent: `routes` has all. */
  changed: Type.Optional(listOf(InstanceId, CHANGED_MAX)),
};
export const RoutesRequest = named('RoutesRequest', {
  ...ROUTES_ASKED,
  /** SSH addresses that could not be opened, and why. */
  blocked: listOf(closed({ host: Type.Optional(HostName), port: Port, problem: Text }), ROUTES_MAX),
});
export type RoutesRequest = Of<typeof RoutesRequest>;
export const RoutesResponse = named('RoutesResponse', {
  ...ROUTES_ANSWERED,
  routes: listOf(IngressRoute, ROUTES_MAX),
});
export type RoutesResponse = Of<typeof RoutesResponse>;

/** Requests a start of the VM, for a connection that waits at its port. */
export const WakeRequest = named('WakeRequest', { instance_id: InstanceId });
export type WakeRequest = Of<typeof WakeRequest>;
/** `coming`: it starts, or the ingress must ask again when its stop has ended. */
export const WakeResponse = Type.Union([
  closed({ outcome: Type.Literal('coming') }),
  closed({ outcome: Type.Literal('refused'), why: Text }),
]);
export type WakeResponse = Of<typeof WakeResponse>;

/** Which ports had connections. Sent every few seconds, even when none had. */
export const ActivityReport = named('ActivityReport', {
  /** For how long this ingress has watched without interruption. */
  watched_ms: Milliseconds,
  /** Ports used since the last acknowledged report, and how long ago. */
  active: listOf(closed({ instance_id: InstanceId, ago_ms: Milliseconds }), ROUTES_MAX),
});
export type ActivityReport = Of<typeof ActivityReport>;

/** `control_planes`: those that live; absent or empty: the one that the ingress knows. */
export const ActivityResponse = named('ActivityResponse', {
  control_planes: Type.Optional(listOf(ControlPlanePlace, CONTROL_PLANES_MAX)),
});
export type ActivityResponse = Of<typeof ActivityResponse>;

/** The address on this machine that leads to a TCP port of a running VM. */
export const OpenPortRequest = named('OpenPortRequest', { instance_id: InstanceId, port: Port });
export type OpenPortRequest = Of<typeof OpenPortRequest>;
export const OpenPortResponse = Type.Union([
  closed({ outcome: Type.Literal('open'), address: GuestPortAddress }),
  closed({ outcome: Type.Literal('not_running') }),
  closed({ outcome: Type.Literal('not_listening') }),
]);
export type OpenPortResponse = Of<typeof OpenPortResponse>;
