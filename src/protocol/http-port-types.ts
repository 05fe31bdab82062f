/** Messages between control plane and ingress about the HTTP ports of instances: routes, access, tickets, use. */
import { Type } from 'typebox';
import { ROUTES_ANSWERED, ROUTES_ASKED } from './ingress-types.ts';
import {
  Bytes,
  Count,
  closed,
  HttpPortId,
  InstanceId,
  listOf,
  matching,
  named,
  nullable,
  type Of,
  oneOf,
  Port,
  Text,
  Time,
  whole,
} from './schemas.ts';

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
