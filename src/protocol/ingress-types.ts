/**
 * Defines the messages between control plane and ingress: routes, wakes, access to HTTP ports and reports of use. Also
 * the messages between control planes, and the list of control planes that hosts and ingresses keep.
 */
import { Type } from 'typebox';
import { CALLS_MAX, PendingCall } from './host-calls.ts';
import {
  Bytes,
  Count,
  closed,
  Etag,
  GuestPortAddress,
  HostId,
  HttpPortId,
  InstanceId,
  listOf,
  Milliseconds,
  matching,
  named,
  nullable,
  type Of,
  oneOf,
  Port,
  Text,
  Time,
  Uuid,
  whole,
} from './schemas.ts';

export const CONTROL_PLANES_MAX = 64;

/** Where a control plane is reached, and the certificate that it shows there (`X509Certificate.fingerprint256`). */
export const ListedControlPlane = named('ListedControlPlane', {
  url: matching('^https://[\\x21-\\x7e]+$', 300),
  fingerprint: matching('^([0-9A-F]{2}:){31}[0-9A-F]{2}$', 95),
});
export type ListedControlPlane = Of<typeof ListedControlPlane>;

/** The peer requests are those of control planes to each other, about calls to hosts. */
export const PeerTakeRequest = named('PeerTakeRequest', { host_id: HostId });
export const PeerTakeResponse = named('PeerTakeResponse', { calls: listOf(PendingCall, CALLS_MAX) });
export const PeerConfirmRequest = named('PeerConfirmRequest', {
  host_id: HostId,
  call_ids: listOf(Uuid, CALLS_MAX),
});
export const PeerHostRequest = named('PeerHostRequest', { host_id: HostId });

/** The path where a control plane opens the stream that a host has opened to it for another's call. */
export function peerStreamPath(host_id: string, call_id: string): string {
  return `/internal/v1/peers/streams/${host_id}/${call_id}`;
}

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
const ROUTES_ASKED = {
  /** The newest answer; null: none yet. */
  seen: nullable(Etag),
  /** Not held: the answer has every change that was committed before the call. */
  at_once: Type.Optional(Type.Boolean()),
};
/** What every answer says, beside `routes`. */
const ROUTES_ANSWERED = {
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
  control_planes: Type.Optional(listOf(ListedControlPlane, CONTROL_PLANES_MAX)),
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

const HTTP_PORTS_MAX = 200_000;
/** Custom hostnames of one port. */
export const CUSTOM_HOSTNAMES_MAX = 10;

/** Lower case, without a final dot and without a port. */
const Hostname = matching('^[a-z0-9-]{1,63}(\\.[a-z0-9-]{1,63})*$', 253);
/** Any credential that a client sends, cut to this length by the ingress. */
const Credential = Type.String({ maxLength: 512 });
/** The client's, as the ingress sees it: an API key may be limited to networks. */
const ClientAddress = matching('^[0-9a-fA-F:.]{2,45}$', 45);

/** Where the ingress sends the requests for one HTTP port. */
export const HttpRoute = named('HttpRoute', {
  port_id: HttpPortId,
  instance_id: InstanceId,
  /** The port's own hostname first, then its active custom ones. */
  hostnames: Type.Array(Hostname, { minItems: 1, maxItems: 1 + CUSTOM_HOSTNAMES_MAX }),
  /** In the guest. */
  port: Port,
  access: oneOf(['private', 'public']),
  /** Where the VM runs: on this machine, or behind a tunnel to its host. Null while no VM can answer. */
  target: nullable(oneOf(['local', 'tunnel'])),
  /** How often the guest was reset since the VM's start. A reset breaks earlier connections without notice. */
  resets: Count,
  /** Without a target: hold the request and request a start. */
  wake: Type.Boolean(),
});
export type HttpRoute = Of<typeof HttpRoute>;
export const HttpRoutesRequest = named('HttpRoutesRequest', ROUTES_ASKED);
export type HttpRoutesRequest = Of<typeof HttpRoutesRequest>;
export const HttpRoutesResponse = named('HttpRoutesResponse', {
  ...ROUTES_ANSWERED,
  routes: listOf(HttpRoute, HTTP_PORTS_MAX),
});
export type HttpRoutesResponse = Of<typeof HttpRoutesResponse>;

/**
 * Asks whether a client may use a private port now. A bearer token that is Berth's decides alone; else the cookie does. The
 * ingress keeps an answer for at most 2 s, and asks again for each connection that stays open.
 */
export const AuthoriseHttpRequest = named('AuthoriseHttpRequest', {
  port_id: HttpPortId,
  hostname: Hostname,
  address: ClientAddress,
  bearer: nullable(Credential),
  /** The value of Berth's cookie. */
  cookie: nullable(Credential),
});
export type AuthoriseHttpRequest = Of<typeof AuthoriseHttpRequest>;
export const AuthoriseHttpResponse = Type.Union([
  /** `cookie`: a request that changes something, or an upgrade, must come from the same origin. `public`: anybody has access by now. */
  closed({ outcome: Type.Literal('allowed'), by: oneOf(['bearer', 'cookie', 'public']) }),
  closed({ outcome: Type.Literal('unauthenticated') }),
  closed({ outcome: Type.Literal('forbidden') }),
  /** The port is deleted, or the hostname is not (or no longer) its own. */
  closed({ outcome: Type.Literal('unknown') }),
]);
export type AuthoriseHttpResponse = Of<typeof AuthoriseHttpResponse>;

/** Redeems a ticket, which works once, for the cookie of one hostname. */
export const RedeemHttpTicketRequest = named('RedeemHttpTicketRequest', {
  hostname: Hostname,
  ticket: Credential,
});
export type RedeemHttpTicketRequest = Of<typeof RedeemHttpTicketRequest>;
export const RedeemHttpTicketResponse = Type.Union([
  closed({
    outcome: Type.Literal('redeemed'),
    cookie: matching('^[A-Za-z0-9_-]+$', 128),
    max_age_seconds: whole(1, 86_400),
  }),
  closed({ outcome: Type.Literal('refused') }),
]);
export type RedeemHttpTicketResponse = Of<typeof RedeemHttpTicketResponse>;

/** By the first digit of the status that the client got. */
export const STATUS_CLASSES = ['1xx', '2xx', '3xx', '4xx', '5xx'] as const;

/** What a port was used for since the last acknowledged report. Sent every 5 s for ports that were used. */
export const HttpReport = named('HttpReport', {
  ports: listOf(
    named('HttpPortUse', {
      port_id: HttpPortId,
      requests: Count,
      /** To clients, and from them. */
      sent_bytes: Bytes,
      received_bytes: Bytes,
      /** The newest answer of Berth instead of the guest (502, 503, 504), with its message; null when there was none. */
      last_error: nullable(closed({ at: Time, code: matching('^[A-Z_]+$', 40), message: Text })),
    }),
    HTTP_PORTS_MAX,
  ),
  /** Over all ports, in the order of {@link STATUS_CLASSES}. */
  responses: Type.Array(Count, { minItems: STATUS_CLASSES.length, maxItems: STATUS_CLASSES.length }),
});
export type HttpReport = Of<typeof HttpReport>;
